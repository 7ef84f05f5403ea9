"""The course in order, and how long it takes: the README's table and docs/contents.md."""

import re
from collections.abc import Iterable, Iterator, Sequence

import jupytext

from collectives.course import chapters
from collectives.course.practice import registry
from tools import markdown

_SHOWN = re.compile(r"^```(?:diff|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SEEN = re.compile(r"<details><summary>The whole program.*?</details>", re.DOTALL)
WORDS_A_MINUTE = 150
LINES_A_MINUTE = 10
FOR_A_PREDICTION, FOR_A_CHANGE, FOR_A_PROGRAM, FOR_ITS_LINE, FOR_A_TASK = 1, 2, 3, 1, 10


def minutes(lesson: chapters.Lesson) -> tuple[float, float]:
    """Of reading and of exercises, by the rule that docs/contents.md states."""
    prose, lines = parts(lesson)
    predictions = prose.count("**Predict first.**")
    tasks = _section(prose, "Change and try") + _section(prose, "Make it wrong")
    changes = len(re.findall(r"^\d+\. ", tasks, re.MULTILINE))
    # A section has a task of its own, or names exercises.
    sections = len(re.findall(r"^## Write it yourself$", prose, re.MULTILINE))
    programs = re.findall(r"^collectives practice (\w+)$", prose, re.MULTILINE)
    tasks_of_its_own = max(0, sections - len(programs))
    return (
        len(prose.split()) / WORDS_A_MINUTE
        + len(lines) / LINES_A_MINUTE
        + predictions * FOR_A_PREDICTION,
        changes * FOR_A_CHANGE
        + sum(_of_program(name, lesson.name) for name in programs)
        + tasks_of_its_own * FOR_A_TASK,
    )


def parts(lesson: chapters.Lesson) -> tuple[str, list[str]]:
    """Its prose, and its lines of code. What a lesson of the route shows of its program is code.

    The title is read where the lesson is chosen, and the lines of the whole program, which the
    last lesson of the route folds, are read in those before.
    """
    cells = jupytext.read(lesson.path).cells
    prose = "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    prose = prose.removeprefix(f"# {lesson.title}\n")
    code = [cell.source for cell in cells if cell.cell_type == "code"]
    if lesson.name.startswith("route/"):
        prose = _SEEN.sub("", prose)
        code += _SHOWN.findall(prose)
        prose = _SHOWN.sub("", prose)
    return prose, [line for text in code for line in text.splitlines() if line.strip()]


def _of_program(name: str, lesson: str) -> float:
    try:
        solution = (registry.find(name).folder / "solution.py").read_text("utf-8")
    except ValueError as error:
        raise ValueError(f'"Write it yourself" of {lesson}: {error}') from None
    lines = re.findall(r"^ +\S", solution, re.MULTILINE)  # those of a function
    return FOR_A_PROGRAM + len(lines) * FOR_ITS_LINE


def _section(prose: str, heading: str) -> str:
    return prose.partition(f"## {heading}\n")[2].partition("\n## ")[0]


def in_all(lessons: Iterable[chapters.Lesson]) -> list[int]:
    """Minutes of reading and of exercises: the sums of what each lesson's line says."""
    return [sum(map(round, exact)) for exact in zip(*map(minutes, lessons), strict=True)]


def route() -> str:
    """The README's time and table: the route, the calls, then a line for each chapter."""
    known = chapters.read()
    first = chapters.route()
    reading, exercises = in_all(first)
    rows = [*_part("My DDP script: start and nine lessons", first)]
    rows += [*_part("The calls, one by one", known["calls"].lessons), ("**Chapters**", "", "")]
    for chapter in known.values():
        if chapter.name not in ("start", "route", "calls"):
            link = f"[{chapter.name}](docs/contents.md#{chapter.name})"
            rows.append((link, f"{chapter.title}.", in_all(chapter.lessons)[0]))
    return (
        f'"My DDP script" takes {reading} minutes to read and predict, with start, '
        f"and {exercises} more if you do all exercises that its lessons name.\n\n"
        + markdown.table(["lesson", "what happens", "minutes"], rows)
    )


def _part(title: str, lessons: Sequence[chapters.Lesson]) -> Iterator[tuple]:
    yield f"**{title}**", "", f"**{in_all(lessons)[0]}**"
    for lesson in lessons:
        link = f"[{lesson.name}](notebooks/{lesson.name}.ipynb)"
        yield link, lesson.summary, in_all([lesson])[0]


def page() -> str:
    """What docs/contents.md says of every lesson of every chapter."""
    rule = (
        "The minutes are estimates, computed from the files of the lessons. "
        f"*Reading* counts {WORDS_A_MINUTE} words a minute, folded answers included, but not the "
        "whole program that the last lesson of the route folds, "
        f"{LINES_A_MINUTE} lines of code a minute, "
        f'and {FOR_A_PREDICTION} minute for each "Predict first". '
        f"*Exercises* counts {FOR_A_CHANGE} minutes for each change to try, "
        f"{FOR_A_PROGRAM} for each program to write and {FOR_ITS_LINE} for each line of our "
        f"solution, and {FOR_A_TASK} for a larger task."
    )
    return "\n\n".join([rule, *map(_chapter, chapters.read().values())])


def _chapter(chapter: chapters.Chapter) -> str:
    rows = []
    for lesson in chapter.lessons:
        name = lesson.name
        link = f"[{lesson.title}](../notebooks/{name}.ipynb), [.py](../lessons/{name}.py)"
        rows.append([link, lesson.summary, *in_all([lesson])])
    if len(chapter.lessons) > 1:
        rows.append(["together", "", *in_all(chapter.lessons)])
    heads = ["lesson", "what happens", "reading", "exercises"]
    return f"## {chapter.name}\n\n{chapter.title}.\n\n{markdown.table(heads, rows)}"
