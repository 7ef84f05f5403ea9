"""The capability matrix: try every cell in a fresh world of its own, and record what happened."""

import platform
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed, wait

from collectives.backends import availability, machine
from collectives.launcher import start
from collectives.launcher.failure import LaunchError
from collectives.launcher.launch import launch
from collectives.matrix.measured import UNAVAILABLE, Matrix, Measured
from collectives.semantics.cell import Cell
from collectives.semantics.forms import FORMS, called
from collectives.semantics.probe import Silence, probe

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
World = Callable[[Callable, tuple, Cell], tuple[str, str]]


def measure(
    cells: list[Cell],
    timeout: float | None = None,
    at_once: int = _AT_ONCE,
) -> Iterator[Measured]:
    """Try the cells, `at_once` at a time; yield each one as soon as it is known.

    `timeout` is in seconds, for each cell. To stop early, close the iterator: nothing more is
    begun.
    """

    def world(step: Callable, args: tuple, cell: Cell) -> tuple[str, str]:
        like_the_cell = {"backend": cell.backend, "device": cell.device}
        limit = timeout or LIMITS[cell.device]
        return outcome_of(
            lambda: launch(
                step, cell.world_size, args=args, timeout=limit, diagnose=False, **like_the_cell
            )
        )

    if any(not unavailable(cell) for cell in cells):
        # subtle: the time to start the fork server must not count for the first cell.
        launch(do_nothing, 1, backend="gloo", device="cpu", timeout=_WARM_UP)
    reasons = without_a_world(cells, world)
    pool, futures = ThreadPoolExecutor(at_once), []
    try:
        for cell in cells:
            reason = reasons.get(cell.column) or unavailable(cell)
            futures.append(pool.submit(answer, cell, world, reason))
        for future in as_completed(futures):
            yield future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        begun = [future for future in futures if not future.cancelled()]
        if wait(begun, _SHUTDOWN).not_done:
            start.kill_all()
        pool.shutdown()


def answer(cell: Cell, world: World, reason: str | None) -> Measured:
    """Try one cell, unless there is a `reason` why it cannot be tried."""
    name = called(FORMS[cell.name])
    if reason:
        return Measured.of(cell, name, UNAVAILABLE, reason)
    begin = time.monotonic()
    state, detail = world(probe, (cell, Silence()), cell)
    return Measured.of(cell, name, state, detail, round(time.monotonic() - begin, 4))


def unavailable(cell: Cell, ranks_here: int | None = None) -> str | None:
    """Why this machine cannot try the cell; None if it can.

    `ranks_here` is how many of the cell's ranks run on this machine; by default all of them.
    """
    import torch

    if called(FORMS[cell.name]) is None:
        return f"torch {torch.__version__} has no torch.distributed.{cell.name}"
    return availability.unavailable(cell.backend, cell.device, ranks_here or cell.world_size)


def without_a_world(cells: list[Cell], world: World) -> dict[tuple[str, str, int], str]:
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
            state, detail = world(do_nothing, (Silence(),), cell)
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
        if error.kind in ("hung", "died"):
            return {"hung": "hangs", "died": "crashes"}[error.kind], str(error).splitlines()[0]
        return "refuses", _reason(error)
    except Exception as error:  # the world could not even be started: no cell may end the run
        return "crashes", f"{type(error).__name__}: {error}".splitlines()[0]
    return ("wrong", wrong[0]) if wrong else ("works", "")


def _reason(error: LaunchError) -> str:
    """In a line, what a rank raised. Refused is ours: its text is the reason."""
    text = error.error_text if error.error_type == "Refused" else error.summary
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
