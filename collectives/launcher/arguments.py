"""Checks of arguments that `launch` and the commands share. Each raises ValueError."""

import math

from collectives.launcher.worker import Worker

DEFAULT_RANKS = 4


def world_size(nproc: int | None, worker: Worker | None) -> int:
    """How many ranks `nproc` asks for; None: the launcher's world, or four ranks without one."""
    if nproc is not None and (type(nproc) is not int or nproc < 1):
        raise ValueError(f"nproc={nproc!r} is not a number of ranks: use a whole number from 1.")
    if worker is None:
        return nproc or DEFAULT_RANKS
    if nproc not in (None, worker.world_size):
        raise ValueError(
            f"nproc={nproc}, but {worker.launcher} started {worker.world_size} ranks: "
            "leave nproc out."
        )
    return worker.world_size


def check_timeout(seconds: float) -> None:
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not 0 < seconds < math.inf:
        raise ValueError(f"timeout={seconds!r} is not a time limit: use seconds, more than 0.")
