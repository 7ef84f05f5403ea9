"""The capability matrix: try every cell in a fresh world of its own, and record what happened."""

import platform
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from pathlib import Path

from collectives.backends import availability, machine
from collectives.launcher import start
from collectives.launcher.failure import LaunchError
from collectives.launcher.rank_spec import LaunchSpec
from collectives.launcher.worker import Worker
from collectives.launcher.world import World
from collectives.matrix.measured import UNAVAILABLE, Matrix, Measured
from collectives.recording.ending import Ending
from collectives.recording.stack import is_library, main_thread
from collectives.semantics.cell import Cell
from collectives.semantics.forms import FORMS, called
from collectives.semantics.probe import Bug, Refused, Silence, probe

# The default time limit of a cell, in seconds. Most cells take a tenth of a second; a GPU's context
# and NCCL's connections take longer.
LIMITS = {"cpu": 10.0, "cuda": 60.0}

# Worlds at a time. While one starts processes or waits for a failure to settle, another computes.
_AT_ONCE = 3

# When the run is interrupted, worlds get this long to end by themselves, in seconds; then they are
# killed.
_SHUTDOWN = 1.0

# A machine that cannot start a rank in this time, in seconds, cannot measure either.
_WARM_UP = 120.0

# A backend that we do not know gets so many chances to start a world before its cells are given up.
_ATTEMPTS = 3

# Runs a step with these arguments in a world like the cell's; the state and the detail.
Attempt = Callable[[Callable, tuple, Cell], tuple[str, str]]


def measure(
    cells: list[Cell],
    timeout: float | None = None,
    at_once: int = _AT_ONCE,
) -> Iterator[Measured]:
    """Try the cells, `at_once` at a time; yield each one as soon as it is known.

    `timeout` is in seconds, for each cell. To stop early, close the iterator: nothing more is
    begun.
    """

    def attempt(step: Callable, args: tuple, cell: Cell) -> tuple[str, str]:
        spec = LaunchSpec(world_of(cell, timeout), step, args)
        return outcome_of(lambda: start.start(spec))

    if any(not unavailable(cell) for cell in cells):
        # subtle: the time to start the fork server must not count for the first cell.
        start.start(LaunchSpec(World(1, "gloo", "cpu", _WARM_UP), do_nothing))
    reasons = without_a_world(cells, attempt)
    pool, futures = ThreadPoolExecutor(at_once), []
    try:
        for cell in cells:
            reason = reasons.get(cell.column) or unavailable(cell)
            futures.append(pool.submit(answer, cell, attempt, reason))
        for future in as_completed(futures):
            yield future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        begun = [future for future in futures if not future.cancelled()]
        if wait(begun, _SHUTDOWN).not_done:
            start.kill_all()
        pool.shutdown()


def world_of(cell: Cell, timeout: float | None, worker: Worker | None = None) -> World:
    """The world that a cell asks for. `unavailable` says whether it can be had."""
    limit = timeout or LIMITS[cell.device]
    return World(cell.world_size, cell.backend, cell.device, limit, worker)


def answer(cell: Cell, attempt: Attempt, reason: str | None) -> Measured:
    """Try one cell, unless there is a `reason` why it cannot be tried."""
    name = called(FORMS[cell.name])
    if reason:
        return Measured.of(cell, name, UNAVAILABLE, reason)
    begin = time.monotonic()
    state, detail = attempt(probe, (cell, Silence()), cell)
    return Measured.of(cell, name, state, detail, round(time.monotonic() - begin, 4))


def unavailable(cell: Cell, ranks_here: int | None = None) -> str | None:
    """Why this machine cannot try the cell; None if it can.

    `ranks_here` is how many of the cell's ranks run on this machine; by default all of them.
    """
    import torch

    if called(FORMS[cell.name]) is None:
        return f"torch {torch.__version__} has no torch.distributed.{cell.name}"
    return availability.unavailable(cell.backend, cell.device, ranks_here or cell.world_size)


def without_a_world(cells: list[Cell], attempt: Attempt) -> dict[tuple[str, str, int], str]:
    """Why no world starts on a backend that we do not know, by column.

    Without this check, every cell would fail for the same reason. A refused call is no such
    failure: the cells say which calls a backend refuses.
    """
    firsts = {cell.column: cell for cell in reversed(cells)}
    reasons = {}
    for column, cell in firsts.items():
        if cell.backend in availability.BACKENDS or unavailable(cell):
            continue
        for _ in range(_ATTEMPTS):
            state, detail = attempt(do_nothing, (Silence(),), cell)
            if state != "refuses":
                break
        else:
            reasons[column] = f"no world of {cell.world_size} ranks starts: {detail}"
    return reasons


def do_nothing(rank: int, world_size: int, device, silence: Silence | None = None) -> None:
    """In a rank: a world that makes no call."""


def outcome_of(run: Callable[[], list]) -> tuple[str, str]:
    """The state and the detail that a world stands for.

    `run()` returns, for each rank, what was wrong there, or None.
    """
    try:
        wrong = [text for text in run() if text]
    except LaunchError as error:
        if error.kind is Ending.DIED:
            return "crashes", error.headline
        if error.kind is Ending.HUNG:
            return "hangs", error.headline + _place(error.stacks.get(error.rank, ""))
        return "crashes" if error.error_type == Bug.__name__ else "refuses", _reason(error)
    except Exception as error:  # the world could not even be started: no cell may end the run
        return "crashes", f"{type(error).__name__}: {error}".splitlines()[0]
    return ("wrong", wrong[0]) if wrong else ("works", "")


def _place(stack: str) -> str:
    """The innermost line of a backend that is written in Python; "<string>" starts the process."""
    for file, line, _ in main_thread(stack):
        if not is_library(file) and not file.startswith("<"):
            return f", at {Path(file).name}, line {line}"
    return ""


def _reason(error: LaunchError) -> str:
    """In a line, what a rank raised. Refused and Bug are ours: their text is the reason."""
    is_ours = error.error_type in (Refused.__name__, Bug.__name__)
    text = error.error_text if is_ours else error.summary
    return text.partition("\n")[0]


def record(cells: list[Measured]) -> Matrix:
    """The matrix of a run on this machine."""
    import torch

    nccl = availability.nccl_version()
    mpi = [
        f"{name} {version}"
        for name in ("mpi4py", "mpich", "openmpi")
        if (version := machine.version(name))
    ]
    return Matrix(
        torch=torch.__version__,
        nccl=".".join(map(str, nccl)) if nccl else None,
        cuda=torch.version.cuda,
        mpi=", ".join(mpi) or None,
        platform=f"{platform.system()} {platform.machine()}",
        cells=cells,
    )
