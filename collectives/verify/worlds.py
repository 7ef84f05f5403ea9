"""Ask questions in worlds of ranks: many in one world, and again alone what goes wrong there."""

import json
import math
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from collectives.launcher import start
from collectives.launcher.failure import LaunchError
from collectives.launcher.rank_spec import LaunchSpec
from collectives.launcher.world import World
from collectives.recording import stack as stacks
from collectives.semantics.probe import Silence
from collectives.verify import in_rank
from collectives.verify.question import NOT_ASKED, Answer, Question

# The same outcome of so many questions of a call is asked again alone; the others are believed.
_CONFIRMED = 4
# After so many hangs of a call, the rest of its questions are not asked.
_HANGS = 2

# Starting and leaving a world may take so long, in seconds: that of a busy machine.
_START = 60.0

# Which note of several ranks decides.
_ORDER = {"crashes": 0, "refuses": 1, "wrong": 1, "stated": 2, "works": 3}


@dataclass
class _Notes:
    """What the ranks of a world noted. `states[number]` has a note for each rank that has one."""

    states: dict[int, list[tuple[float, str, str, str]]] = field(default_factory=dict)
    last: list[int] = field(default_factory=list)  # by rank: the question that it came to
    since: list[float] = field(default_factory=list)  # by rank: when it came to that one
    stacks: list[str] = field(default_factory=list)
    left_at: str | None = None  # where a rank hung that left the world
    poisoned: bool = False
    error: Exception | None = None


class Asker:
    """Asks a backend. It is called from several threads; each asks its own questions."""

    def __init__(self, backend: str, device: str):
        self.backend, self.device = backend, device
        self.confirmed: Counter[tuple[str, ...]] = Counter()
        self.places: dict[tuple[str, ...], str] = {}
        self.hangs: Counter[tuple[str, str]] = Counter()
        self.hung_at: dict[tuple[str, str], str] = {}
        self.leaves = True  # whether ranks come out of destroy_process_group

    def ask(self, questions: list[Question]) -> Iterator[Answer]:
        """The answers, in any order. All questions are for the same number of ranks."""
        waiting = list(questions)
        while waiting:
            while waiting and (reason := self._given_up(waiting[0])):
                yield Answer(waiting.pop(0), NOT_ASKED, reason)
            if not waiting:
                return
            notes = self._world(waiting, traces=False)
            if notes.left_at is not None and self.leaves:
                self.leaves = False
                yield _cannot_leave(waiting[0], notes.left_at)
            rest = []
            for number, question in enumerate(waiting):
                answer = self._answer(question, number, notes)
                if answer is None:
                    rest.append(question)
                elif answer.is_fault or (answer.state == "refuses" and answer.place):
                    yield self._again(answer)
                else:
                    yield answer
            if len(rest) == len(waiting):  # not even the first one has an answer
                yield self._again(Answer(rest.pop(0), NOT_ASKED))
            waiting = rest

    def _given_up(self, question: Question) -> str:
        key = question.section, question.call
        if self.hangs[key] < _HANGS:
            return ""
        return f"{question.call} has hung {_HANGS} times{self.hung_at[key]}"

    def _again(self, answer: Answer) -> Answer:
        """The same question, alone in a world."""
        question = answer.question
        key = question.section, question.call, answer.state, _kind(question)
        if answer.state == "wrong" and self.confirmed[key] >= _CONFIRMED:
            return replace(answer, place=self.places[key])
        if reason := self._given_up(question):
            return Answer(question, NOT_ASKED, reason)
        for _ in range(2):  # a world that did not start says nothing
            notes = self._world([question], traces=True)
            if (repeated := self._answer(question, 0, notes)) is not None:
                break
        else:
            return Answer(question, NOT_ASKED, f"no world started: {_headline(notes.error)}")
        key = question.section, question.call, repeated.state, _kind(question)
        self.confirmed[key] += 1
        self.places[key] = repeated.place
        if repeated.state == "hangs":
            self.hangs[question.section, question.call] += 1
            self.hung_at[question.section, question.call] = (
                repeated.place and f" at {repeated.place}"
            )
        return repeated

    def _world(self, questions: list[Question], traces: bool) -> _Notes:
        ranks = questions[0].ranks
        seconds = _START + sum(question.limit for question in questions)
        world = World(ranks, self.backend, self.device, seconds)
        with tempfile.TemporaryDirectory(prefix="collectives-verify-") as folder:
            args = (questions, folder, traces, self.leaves, Silence())
            error: Exception | None = None
            try:
                start.start(LaunchSpec(world, in_rank.ask, args))
            except Exception as raised:  # no answer may end the run
                error = raised
            return _read(Path(folder), ranks, error)

    def _answer(self, question: Question, number: int, notes: _Notes) -> Answer | None:
        """What the ranks noted of a question; None if that says nothing."""
        states = sorted(notes.states.get(number, ()))
        if len(states) == question.ranks:
            # Of those that went wrong the first one says why: a rank that leaves makes others fail.
            _, state, detail, place = min(states, key=lambda note: _ORDER[note[1]])
            return Answer(question, state, detail, place)
        if number not in notes.last:
            return None
        stuck = [
            rank
            for rank, (last, text) in enumerate(zip(notes.last, notes.stacks, strict=True))
            if text and last == number
        ]
        # A rank that hangs ends after the limit; what others say then is that they have lost it.
        ended = min((notes.since[rank] + question.limit for rank in stuck), default=math.inf)
        for at, state, detail, place in states:
            if state in ("crashes", "refuses") and at < ended:
                return Answer(question, state, detail, place)
        if stuck:
            stuck.sort(key=lambda rank: not place_in(notes.stacks[rank]))  # who is in their code
            where = place_in(notes.stacks[stuck[0]])
            text = f"rank {stuck[0]}/{question.ranks} has not returned after {question.limit:g} s"
            if wrong := [note for note in states if note[1] == "wrong"]:
                text += f"; before that, {wrong[0][2].removeprefix('Mismatch: ')}"
            return Answer(question, "hangs", text + (where and f", at {where}"), where)
        if isinstance(notes.error, LaunchError) and notes.error.kind == "died":
            where = place_in(notes.error.stacks.get(notes.error.rank, ""))
            return Answer(question, "crashes", notes.error.headline, where)
        if notes.error is not None:
            return Answer(question, "refuses", _headline(notes.error))
        return None


def _cannot_leave(asked: Question, place: str) -> Answer:
    case = "at the end of a program"
    question = Question("at once", "destroy_process_group", case, asked.ranks, asked.run)
    text = f"a rank has not come out of it after 20 s{place and f', at {place}'}"
    return Answer(question, "hangs", text, place)


def _kind(question: Question) -> str:
    """What besides the section and the call tells questions apart that may fail otherwise."""
    traits = dict(question.traits)
    return f"{traits.get('variant', '')} {traits.get('op', '')} {question.ranks}"


def _headline(error: Exception | None) -> str:
    if isinstance(error, LaunchError):
        return error.summary.splitlines()[0]
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _read(folder: Path, ranks: int, error: Exception | None) -> _Notes:
    notes = _Notes(error=error)
    for rank in range(ranks):
        last, since = -1, 0.0
        for line in text_of(folder / f"{rank}.notes").splitlines():
            try:
                number, state, detail, place, at = json.loads(line)
            except ValueError:  # it died while it wrote
                continue
            if number > last:
                last, since = number, at
            if number == in_rank.LEAVING:
                continue
            if state == "poisoned":
                notes.poisoned = True
            elif state != "begun":
                notes.states.setdefault(number, []).append((at, state, detail, place))
        notes.last.append(last)
        notes.since.append(since)
        stack = text_of(folder / f"{rank}.stack")
        notes.stacks.append(stack)
        if stack and last == in_rank.LEAVING:
            notes.left_at = place_in(stack)
    return notes


def text_of(file: Path) -> str:
    return file.read_text(errors="replace") if file.exists() else ""


def place_in(stack: str) -> str:
    """The innermost line of the author's: of the main thread, or else of another one."""
    threads: list[list[Any]] = [stacks.main_thread(stack)]
    threads += [stacks.main_thread(part) for part in stack.split("\n\n")]
    for thread in threads:
        for file, line, function in thread:
            if in_rank.is_authors(file):
                return in_rank.place(file, line, function)
    return ""
