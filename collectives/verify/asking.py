"""Ask a backend everything of a plan, and tell how far it is."""

import functools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed

from collectives.backends import availability
from collectives.course import chapters
from collectives.launcher import server, start
from collectives.matrix import PRELOADED
from collectives.verify import lessons, stated
from collectives.verify.failure import Sufferer
from collectives.verify.plan import Plan
from collectives.verify.question import NOT_ASKED, STATED, Answer, Question
from collectives.verify.worlds import Asker

# Worlds at a time. While one starts processes or waits for a limit, another computes.
_AT_ONCE = 3

# About so long questions take, in seconds, by section: for the time that is left.
_WEIGHTS = {"calls": 0.04, "sizes": 0.25, "widths": 0.02, "groups": 0.05, "at once": 0.5}
_WEIGHTS |= {"failure": 2.5, "stated": 1.5, "lessons": 8.0}

# Called with the new answers and with the share of the work that is done.
Progress = Callable[[list[Answer], float], None]


def ask(
    plan: Plan, progress: Progress, keep: Callable[[Question], bool] = lambda _: True
) -> list[Answer]:
    """All answers, or those to the questions to keep.

    If the group itself is wrong, or no world starts, nothing else is asked.
    """
    server.start_server((*PRELOADED, *availability.modules([plan.backend])))
    asker = Asker(plan.backend, plan.device)
    questions = [question for question in plan.questions() if keep(question)]
    items = _items(questions, plan)
    total = sum(weight for _, weight, _ in items) or 1.0
    answers: list[Answer] = []
    done = 0.0
    first = [item for item in items if item[0] == "group"]
    rest = [item for item in items if item[0] != "group"]
    for _, weight, work in first:
        new = work(asker)
        answers += new
        done += weight
        progress(new, done / total)
    no_world = all(answer.state == NOT_ASKED for answer in answers) and answers
    if no_world or any(answer.state == "wrong" for answer in answers):
        reason = answers[0].detail if no_world else "the group itself is not what torch passed"
        return answers + [
            Answer(question, NOT_ASKED, reason)
            for question in questions
            if question.section != "group"
        ]
    pool = ThreadPoolExecutor(_AT_ONCE)
    try:
        futures = {pool.submit(work, asker): weight for _, weight, work in rest}
        for future in as_completed(futures):
            new = future.result()
            answers += new
            done += futures[future]
            progress(new, done / total)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        if done < total * 0.999:
            start.kill_all()
    order = {question: number for number, question in enumerate(questions)}
    return sorted(answers, key=lambda answer: order.get(answer.question, len(order)))


_Item = tuple[str, float, Callable[[Asker], list[Answer]]]


def _items(questions: list[Question], plan: Plan) -> list[_Item]:
    """What is asked together: the questions of a section about one call, on as many ranks."""
    groups: dict[tuple[str, str, int], list[Question]] = {}
    sufferer = Sufferer(plan.backend, plan.device)
    for question in questions:
        call = "" if question.section == "group" else question.call
        groups.setdefault((question.section, call, question.ranks), []).append(question)
    items: list[_Item] = []
    for (section, _, _), some in groups.items():
        weight = _WEIGHTS.get(section, 1.0)
        if section == "failure":
            items += [(section, weight, functools.partial(_suffer, sufferer, q)) for q in some]
        elif section == "stated":
            items += [(section, weight, functools.partial(_state, plan, q)) for q in some]
        else:
            items.append((section, weight * len(some), functools.partial(_together, some)))
    for size in plan.lesson_sizes:
        items.append(("lessons", _WEIGHTS["lessons"], functools.partial(_lessons, plan, size)))
    return items


def _together(questions: list[Question], asker: Asker) -> list[Answer]:
    return list(asker.ask(questions))


def _suffer(sufferer: Sufferer, question: Question, asker: Asker) -> list[Answer]:
    if not asker.leaves:  # nor would a rank that lost its peer
        return [Answer(question, NOT_ASKED, "ranks do not come out of destroy_process_group()")]
    return [sufferer.ask(question)]


def _state(plan: Plan, question: Question, asker: Asker) -> list[Answer]:
    """Whatever comes of it is told, and judged only where a claim speaks of it."""
    answers = [
        answer
        if answer.state in (STATED, NOT_ASKED)
        else Answer(question, STATED, f"{answer.state}: {answer.detail}")
        for answer in asker.ask([question])
    ]
    return [stated.judged(answer, plan.claims) for answer in answers]


def _lessons(plan: Plan, size: int, asker: Asker) -> list[Answer]:
    everywhere = [chapter for chapter in chapters.read().values() if chapter.runs_everywhere]
    names = [name for chapter in everywhere for name in chapter.names]
    runs = [name for name in names if lessons.runnable(name, plan.backend, plan.device, size)]
    faults = lessons.faults_of(runs, plan.backend, plan.device, size)
    answers = []
    for name in runs:
        question = Question("lessons", name, "lesson", size, _lessons)
        text = faults.get(name, "").splitlines()
        answers.append(Answer(question, "wrong" if text else "works", text[0] if text else ""))
    if "together" in faults:
        question = Question("lessons", "together", "all lessons", size, _lessons)
        answers.append(Answer(question, "wrong", faults["together"].splitlines()[0]))
    return answers


def left(share: float, begin: float) -> float:
    """The seconds that are left, if it goes on as it went until now."""
    return (time.monotonic() - begin) * (1 - share) / max(share, 0.01)
