"""Try a reader's program in worlds of several sizes, and find the smallest case that fails."""

import linecache
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from collectives.course.practice import registry
from collectives.course.practice.exercise import Exercise
from collectives.course.practice.run_cases import file_of
from collectives.course.practice.world import HANGS_AFTER, Ended, Stuck, run_world
from collectives.launcher.failure import LaunchError
from collectives.recording.ending import Ending
from collectives.recording.stack import main_thread
from collectives.words import counted

_COUNTED = 4  # ranks of the world in which messages are counted


@dataclass(frozen=True)
class ExerciseVerdict:
    """What came of a program: `kind` is solved, todo, wrong, refused, raised, hung, slow or died.

    says: what is wrong, in a sentence. case: in which case. rows: by rank, what it was given and
    what it got and should have got. lines: of the reader's file. sent: what a right program sends,
    and what ours does.
    """

    kind: str
    says: str = ""
    case: str = ""
    rows: list[dict[str, Any]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    sent: str = ""

    @property
    def is_solved(self) -> bool:
        return self.kind == "solved"


def try_program(
    name: str,
    program: str | Callable,
    report: Callable[[str], None] = lambda text: None,
    prints: bool = True,
) -> ExerciseVerdict:
    """The first failure of a program, or that it is solved.

    `program`: a file, or the function that the exercise wants. `report` is told again and again
    what is being tried. Unless it `prints`, what the program prints goes to stderr.
    """
    exercise = registry.find(name)
    passed: list[str] = []
    sent = ""
    for size in exercise.sizes:

        def tell(what: str, size: int = size) -> None:
            report(f"{counted(size, 'rank')}, {what}")

        ended = run_world(exercise, program, size, tell, prints)
        if _stood_elsewhere(ended):  # not the reader's doing: a machine that was busy, or we
            ended = run_world(exercise, program, size, tell, prints)
        verdict = _failure(ended, file_of(program), passed)
        if verdict is not None:
            return verdict
        if exercise.sends and size == _COUNTED:
            sent = _beside_ours(exercise, ended, prints)
    says = f"right in {len(passed)} cases, with {_sizes(exercise.sizes)} ranks"
    return ExerciseVerdict("solved", says, sent=sent)


def _beside_ours(exercise: Exercise, yours: Ended, prints: bool) -> str:
    """What all ranks together sent in the first case of a world of four."""
    solution = str(exercise.folder / "solution.py")
    ours = run_world(exercise, solution, _COUNTED, lambda what: None, prints)
    label = yours.notes[0][0]["begins"]
    return f"{counted(_COUNTED, 'rank')}, {label}: {_amount(yours)}; ours: {_amount(ours)}"


def _amount(ended: Ended) -> str:
    messages, amount = (
        sum(notes[0][what] for notes in ended.notes) for what in ("messages", "bytes")
    )
    return f"{messages} messages, {amount} bytes"


def _stood_elsewhere(ended: Ended) -> bool:
    """Whether no rank went on, but none of them was in the reader's file."""
    is_slow = isinstance(ended.error, Stuck) and ended.error.kind is Ending.SLOW
    return is_slow and not any(place.line for place in ended.board.places)


def _failure(ended: Ended, file: str, passed: list[str]) -> ExerciseVerdict | None:
    """The first case that failed in this world; None if none did. The others join `passed`.

    A death outweighs an exception, which outweighs a hang, which outweighs a wrong value: each may
    be the cause of the next.
    """
    linecache.checkcache(file)
    labels: dict[int, str] = {}
    for notes in ended.notes:
        labels |= {number: note["begins"] for number, note in notes.items() if "begins" in note}
    wrong = [number for notes in ended.notes for number in notes if notes[number].get("problem")]
    number = min(wrong, default=ended.case)
    size, error = len(ended.notes), ended.error
    world = counted(size, "rank")
    passed += [f"{world}, {labels[right]}" for right in sorted(labels) if right < number]
    if error is None and not wrong:
        return None
    rows = [notes.get(number, {}) for notes in ended.notes]
    before = f" The last right case: {passed[-1]}." if passed else ""
    case = f"{world}, {labels[number]}" if number in labels else world
    problems = {
        rank: problem
        for rank, row in enumerate(rows)
        if (problem := row.get("problem") or row.get("dropped"))
    }
    if isinstance(error, LaunchError):
        kind, says, lines = _ended_by(error, ended, file)
    elif isinstance(error, Stuck):
        kind, says, lines = _stuck(error, ended, file)
        says += f" {_sentence(problems, size)}" if problems else ""
    else:
        kind, says, lines = Ending.WRONG, _sentence(problems, size), []
    is_shown = kind != "todo"
    return ExerciseVerdict(
        kind,
        says + before if isinstance(kind, Ending) and kind is not Ending.RAISED else says,
        case if is_shown else "",
        rows if is_shown else [],
        lines,
    )


def _ended_by(error: LaunchError, ended: Ended, file: str) -> tuple[str, str, list[str]]:
    """Of a rank that raised or died: the kind, the sentence and lines of the file."""
    recorded = ended.notes[error.rank].values()
    raised = next((note["raised"] for note in recorded if "raised" in note), None)
    if raised is not None:
        return _raised(file, error.rank, raised)
    if error.kind is Ending.HUNG:  # time is up, and it was still going on
        return Ending.SLOW, "it was still running when its time was up.", _standing(ended, file)
    says = f"{error.headline}."
    if error.signal == signal.SIGABRT:
        says += " On gloo this may be a message that has more bytes than its receive's tensor."
    place = _line(error.stacks.get(error.rank, ""), file)
    return Ending.DIED, says, [f"rank {error.rank} was in line {place}"] if place else []


def _stuck(error: Stuck, ended: Ended, file: str) -> tuple[str, str, list[str]]:
    lines = [*_standing(ended, file), *error.story]
    if error.kind is Ending.HUNG:
        waiting = ended.board.unfinished()
        who = "all ranks" if len(waiting) == len(ended.notes) > 1 else _these(waiting)
        verb = "is" if len(waiting) == 1 else "are"
        return Ending.HUNG, f"it hangs: after {HANGS_AFTER:g} s {who} {verb} still waiting.", lines
    late = [rank for rank in ended.board.unfinished() if not ended.board.places[rank].in_call]
    late = late or ended.board.unfinished()
    return Ending.SLOW, f"{_these(late)} did not finish in time, but no rank waits forever.", lines


def _standing(ended: Ended, file: str) -> list[str]:
    """Where each rank is, if the world had to be ended."""
    lines, unfinished = [], ended.board.unfinished()
    for rank in unfinished:
        place = ended.board.places[rank]
        if place.line:
            verb = "waits" if place.in_call else "is"
            lines.append(f"rank {rank} {verb} in line {_numbered(file, place.line)}")
    returned = [rank for rank in ended.board.ranks if rank not in unfinished]
    if lines and returned:
        lines.append(f"{_these(returned)} {'have' if len(returned) > 1 else 'has'} returned")
    return lines


def _sentence(problems: dict[int, str], size: int) -> str:
    """What is wrong, and on which ranks: a problem that has a name comes first."""
    named = {rank: says for rank, says in problems.items() if says != "wrong"}
    says = next(iter(named.values()), "the result is wrong")
    alike = [rank for rank, problem in named.items() if problem == says] or [*problems]
    return f"{'every rank' if len(alike) == size else _these(alike)}: {says}."


def _raised(file: str, rank: int, raised: dict[str, Any]) -> tuple[str, str, list[str]]:
    lines = [f"line {_numbered(file, line)}" for line, _ in raised["frames"]]
    kind, says = raised["type"], raised["says"]
    if kind == "NotImplementedError" and "TODO" in says:
        return "todo", f"`{raised['frames'][-1][1]}` is not written yet.", lines
    if kind == "NotWritten":
        return "todo", f"{says}.", lines
    if kind in ("SystemExit", "KeyboardInterrupt"):
        return Ending.DIED, f"rank {rank} ended its program.", lines
    if "by peer" in says:
        says = f"rank {rank} is still waiting for another rank, which makes no more calls."
        return Ending.RAISED, says, lines
    if "Invalid destination rank" in says:
        return "refused", f"rank {rank}: it sends to itself, which a rank cannot do.", lines
    if kind == "Misuse":
        return "refused", f"rank {rank}: {says}.", lines
    return Ending.RAISED, f"rank {rank} raised {kind}: {says}", lines


def _line(stack: str, file: str) -> str:
    """The innermost line of the reader's file in a stack, with its number."""
    for place, line, *_ in main_thread(stack):
        if place == file:
            return _numbered(file, line)
    return ""


def _numbered(file: str, line: int) -> str:
    return f"{line}: {linecache.getline(file, line).strip()}"


def _these(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _sizes(sizes: tuple[int, ...]) -> str:
    *first, last = map(str, sorted(sizes))
    return f"{', '.join(first)} and {last}"
