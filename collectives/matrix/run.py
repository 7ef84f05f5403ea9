"""The capability matrix: try every cell in a fresh world of its own, and say what became of it."""

import contextlib
import platform
import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from collectives.backends import availability as backends
from collectives.backends import machine as environment
from collectives.launcher import start
from collectives.launcher.failure import LaunchError
from collectives.launcher.launch import launch
from collectives.matrix.recorded import FORMAT, UNAVAILABLE
from collectives.spec.cell import Cell
from collectives.spec.forms import FORMS, called
from collectives.spec.probe import Surroundings, probe

# So long a cell may take, in seconds: most take a tenth. A GPU's context and NCCL's connections take their time.
LIMITS = {"cpu": 10.0, "cuda": 60.0}

# Worlds at a time. While one starts processes or waits for a failure to settle, another computes.
_AT_ONCE = 3

# When the run is interrupted, worlds under way get this long to end by themselves, in seconds; then they are killed.
_GOODBYE = 1.0

# A machine that cannot start a rank in this time, in seconds, cannot measure either.
_WARM_UP = 120.0

_REFUSED = "Refused: "


@dataclass(frozen=True)
class Answer:
    """What became of a cell. `detail` is the exception's type and first line, or another reason; empty where it works."""

    cell: Cell
    called: str | None
    state: str
    detail: str
    seconds: float

    def record(self) -> dict:
        """As the JSON has it."""
        return asdict(self.cell) | {
            "called": self.called,
            "state": self.state,
            "detail": self.detail,
            "seconds": round(self.seconds, 4),
        }


def measure(
    cells: list[Cell],
    modules: tuple[str, ...] = (),
    timeout: float | None = None,
    at_once: int = _AT_ONCE,
) -> Iterator[Answer]:
    """Try the cells, some at a time; answers come as they are found. `modules` are imported in every rank first.

    `timeout` is in seconds, for each cell. To stop early, close the iterator: nothing more is begun.
    """
    if any(not unavailable(cell) for cell in cells):
        launch(
            _nothing, 1, backend="gloo", device="cpu", timeout=_WARM_UP
        )  # the time to start a server is not the first cell's
    todo: queue.SimpleQueue = queue.SimpleQueue()
    done: queue.SimpleQueue = queue.SimpleQueue()
    for cell in cells:
        todo.put(cell)

    def work() -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                done.put(answer(todo.get_nowait(), modules, timeout))

    threads = [
        threading.Thread(target=work, name=f"collectives-matrix-{number}", daemon=True)
        for number in range(at_once)
    ]
    for thread in threads:
        thread.start()
    try:
        for _ in cells:
            yield done.get()
    finally:
        with contextlib.suppress(queue.Empty):
            while True:
                todo.get_nowait()
        for thread in threads:
            thread.join(_GOODBYE)
            if thread.is_alive():
                start.kill_all()
        for thread in threads:
            thread.join(_GOODBYE)


def answer(cell: Cell, modules: tuple[str, ...] = (), timeout: float | None = None) -> Answer:
    """Try one cell."""
    name = called(FORMS[cell.name])
    if reason := unavailable(cell):
        return Answer(cell, name, UNAVAILABLE, reason, 0.0)
    begin = time.monotonic()
    state, detail = _try(cell, modules, timeout or LIMITS[cell.device])
    return Answer(cell, name, state, detail, time.monotonic() - begin)


def _nothing(rank: int, world_size: int, device) -> None:
    pass


def unavailable(cell: Cell, ranks_here: int | None = None) -> str | None:
    """Why this machine, with all of the ranks or some of them, cannot try the cell; None if it can."""
    import torch
    import torch.distributed as dist

    if called(FORMS[cell.name]) is None:
        return f"torch {torch.__version__} has no torch.distributed.{cell.name}"
    if cell.backend in backends.DEVICES:
        return backends.unavailable(cell.backend, cell.device, ranks_here or cell.world_size)
    is_built = getattr(dist, f"is_{cell.backend}_available", None)
    return (
        f"this build of torch has no {cell.backend}"
        if is_built is not None and not is_built()
        else None
    )


def _try(cell: Cell, modules: tuple[str, ...], timeout: float) -> tuple[str, str]:
    options = {
        "backend": cell.backend,
        "device": cell.device,
        "timeout": timeout,
        "diagnose": False,
    }
    try:
        wrong = [
            one
            for one in launch(probe, cell.world_size, args=(cell, Surroundings(modules)), **options)
            if one
        ]
    except LaunchError as error:
        return judge(error)
    except Exception as error:  # the world could not even be started: no cell may end the run
        return "crashes", f"{type(error).__name__}: {error}".splitlines()[0]
    return ("wrong", wrong[0]) if wrong else ("works", "")


def judge(error: LaunchError) -> tuple[str, str]:
    """The state and the detail that a failed launch stands for."""
    first = str(error).splitlines()[0]
    if error.kind == "hung":
        return "hangs", first
    if error.kind == "died":
        return "crashes", first
    return "refuses", first.removeprefix(f"rank {error.rank} raised ").removeprefix(_REFUSED)


def document(answers: list[Answer]) -> dict:
    """The JSON of a run."""
    import torch

    nccl = backends.nccl_version()
    mpi = [
        f"{name} {version}"
        for name in ("mpi4py", "mpich", "openmpi")
        if (version := environment.version(name))
    ]
    return {
        "format": FORMAT,
        "torch": torch.__version__,
        "nccl": ".".join(map(str, nccl)) if nccl else None,
        "cuda": torch.version.cuda,
        "mpi": ", ".join(mpi) or None,
        "platform": f"{platform.system()} {platform.machine()}",
        "cells": [answer.record() for answer in answers],
    }
