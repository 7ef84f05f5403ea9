"""Try a reader's program in worlds of several sizes, and find the smallest case that fails."""

import json
import linecache
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from collectives.course.practice import registry
from collectives.course.practice.attempt import attempt, file_of
from collectives.course.practice.exercise import Exercise
from collectives.launcher.failure import LaunchError
from collectives.launcher.launch import launch
from collectives.recording.stack import main_thread

# A world that has not ended after so many seconds hangs, unless its ranks still make progress: then
# the machine is busy, and it gets the longer limit.
HANGS_AFTER = 3.0
_BUSY = 60.0


@dataclass(frozen=True)
class Verdict:
    """What came of a program: `kind` is solved, todo, wrong, refused, raised, hung or died.

    says: what is wrong, in a sentence. case: in which case. rows: by rank, what it was given and
    what it got and should have got. lines: of the reader's file.
    """

    kind: str
    says: str = ""
    case: str = ""
    rows: list[dict[str, Any]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    @property
    def is_solved(self) -> bool:
        return self.kind == "solved"


def examine(
    name: str, program: str | Callable, report: Callable[[int], None] = lambda size: None
) -> Verdict:
    """The first failure of a program, or that it is solved.

    `program`: a file, or the function that the exercise wants. `report` is told the number of ranks
    before each world.
    """
    wanted = registry.find(name)
    launch(_start, 1, backend="gloo", device="cpu")  # the server of the ranks: no case waits for it
    passed: list[str] = []
    for size in wanted.sizes:
        report(size)
        found = _in_world(wanted, program, size, passed)
        if found is not None:
            return found
    return Verdict("solved", f"right in {len(passed)} cases, with {_sizes(wanted.sizes)} ranks")


def _start(rank: int, world_size: int, device: Any) -> None:
    """So that the ranks of the first case do not wait for the server to import all this."""
    import collectives.course.practice.attempt  # noqa: F401


def _in_world(
    wanted: Exercise, program: str | Callable, size: int, passed: list[str]
) -> Verdict | None:
    """What fails in a world of this size; None if nothing does. `passed`: the cases until now."""
    error, notes, is_moving = _tried(wanted, program, size, HANGS_AFTER)
    if error is not None and error.kind == "hung" and is_moving:
        error, notes, _ = _tried(wanted, program, size, _BUSY)
    cases = [_latest(lines) for lines in notes]
    wrong = _wrong(size, cases, passed)
    if wrong is not None or error is None:
        return wrong
    return _failed(program, size, error, cases, passed)


def _tried(
    wanted: Exercise, program: str | Callable, size: int, limit: float
) -> tuple[LaunchError | None, list[list[dict[str, Any]]], bool]:
    """How the world failed, what each rank noted, and whether they work: one noted something just
    now, or all are between two cases.
    """
    with tempfile.TemporaryDirectory() as folder:
        args, error = (wanted.name, program, folder), None
        try:
            launch(attempt, size, args=args, backend="gloo", device="cpu", timeout=limit)
        except LaunchError as caught:
            error = caught
        files = [Path(folder, str(rank)) for rank in range(size)]
        moved = max((file.stat().st_mtime for file in files if file.exists()), default=time.time())
        notes = [_read(file) for file in files]
    are_between = all(lines and "begins" not in lines[-1] for lines in notes)
    return error, notes, are_between or time.time() - moved < HANGS_AFTER / 2


def _read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def _latest(lines: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """What is known of each case: {number: {"begins": label, ...}}."""
    found: dict[int, dict[str, Any]] = {}
    for line in lines:
        found.setdefault(line["case"], {}).update(line)
    return found


def _wrong(size: int, cases: list[dict[int, dict[str, Any]]], passed: list[str]) -> Verdict | None:
    """The first case that some rank got wrong. Those that all ranks got right join `passed`."""
    for number in sorted({number for rank in cases for number in rank if number >= 0}):
        rows = [rank.get(number, {}) for rank in cases]
        problems = {rank: row["problem"] for rank, row in enumerate(rows) if row.get("problem")}
        case = f"{_ranks(size)}, {next(row['begins'] for row in rows if 'begins' in row)}"
        if problems:
            return Verdict("wrong", _sentence(problems, size) + _before(passed), case, rows)
        if all("problem" in row for row in rows):
            passed.append(case)
    return None


def _sentence(problems: dict[int, str], size: int) -> str:
    """What is wrong, and on which ranks: a problem that has a name comes first."""
    named = {rank: says for rank, says in problems.items() if says != "wrong"}
    says = next(iter(named.values()), "the result is wrong")
    alike = [rank for rank, other in named.items() if other == says] or [*problems]
    if len(alike) == size:
        return f"every rank: {says}."
    return f"rank{'s' * (len(alike) > 1)} {', '.join(map(str, alike))}: {says}."


def _before(passed: list[str]) -> str:
    return f" The last right case: {passed[-1]}." if passed else ""


def _failed(
    program: str | Callable,
    size: int,
    error: LaunchError,
    cases: list[dict[int, dict[str, Any]]],
    passed: list[str],
) -> Verdict:
    """The program raised, hung or ended its process."""
    file = file_of(program)
    linecache.checkcache(file)
    number = min((max(rank, default=-1) for rank in cases), default=-1)
    label = next((rank[number]["begins"] for rank in cases if "begins" in rank.get(number, {})), "")
    case = f"{_ranks(size)}, {label}" if label else _ranks(size)
    rows = [rank.get(number, {}) for rank in cases]
    raised = next((one["raised"] for one in cases[error.rank].values() if "raised" in one), None)
    if raised is not None:
        verdict = _raised(file, error.rank, raised, case)
        return verdict if verdict.kind == "todo" else replace(verdict, rows=rows)
    if error.kind == "hung":
        lines = [
            f"rank {rank} waits in line {line}"
            for rank, stack in sorted(error.stacks.items())
            if (line := _line(stack, file))
        ]
        returned = [str(rank) for rank in range(size) if rank not in error.stacks]
        if returned:
            lines.append(f"rank {', '.join(returned)}: returned")
        story = [line for line in str(error).splitlines()[1:] if not line.startswith("  rank ")]
        says = f"it hangs: after {HANGS_AFTER:g} s the ranks still wait.{_before(passed)}"
        return Verdict("hung", says, case, rows, [*lines, *story])
    says = str(error).splitlines()[0]
    if error.signal == signal.SIGABRT:
        says += ". On gloo a message that has more bytes than its receive's tensor ends the process"
    return Verdict("died", f"{says}.{_before(passed)}", case, rows)


def _raised(file: str, rank: int, raised: dict[str, Any], case: str) -> Verdict:
    lines = [f"line {_numbered(file, line)}" for line, _ in raised["frames"]]
    kind, says = raised["type"], raised["says"]
    if kind == "NotImplementedError" and "TODO" in says:
        return Verdict("todo", f"`{raised['frames'][-1][1]}` is not written yet.", lines=lines)
    if kind in ("SystemExit", "KeyboardInterrupt"):
        what = "died", f"rank {rank} ended its program."
    elif "by peer" in says:
        what = "raised", f"rank {rank} still waits for another rank, which has ended its calls."
    elif "Invalid destination rank" in says:
        what = "refused", f"rank {rank}: it sends to itself, which a rank cannot do."
    elif kind == "Misuse":
        what = "refused", f"rank {rank}: {says}."
    else:
        what = "raised", f"rank {rank} raised {kind}: {says}"
    return Verdict(*what, case, lines=lines)


def _line(stack: str, file: str) -> str:
    """The innermost line of the reader's file in a stack, with its number."""
    for place, line, *_ in main_thread(stack):
        if place == file:
            return _numbered(file, line)
    return ""


def _numbered(file: str, line: int) -> str:
    return f"{line}: {linecache.getline(file, line).strip()}"


def _ranks(size: int) -> str:
    return "1 rank" if size == 1 else f"{size} ranks"


def _sizes(sizes: tuple[int, ...]) -> str:
    *first, last = map(str, sorted(sizes))
    return f"{', '.join(first)} and {last}"
