"""Checks of arguments that `launch` and the commands share. Each raises ValueError."""

import errno
import os
import socket

from collectives.backends.availability import Unavailable
from collectives.launcher.worker import Worker

DEFAULT_RANKS = 4

# Each rank is a process of about 10 MiB, so that many take 10 GiB. A larger number is a slip.
_MOST_RANKS = 1024

# In seconds, 31 years. torch counts a time limit in nanoseconds from the start of the machine, and
# in 64 bits: it gives up, or never waits, at 292 years.
_LONGEST = 1e9


def world_size(nproc: int | None, worker: Worker | None) -> int:
    """How many ranks `nproc` asks for; None: the launcher's world, or four ranks without one."""
    if nproc is not None and (type(nproc) is not int or nproc < 1):
        raise ValueError(f"nproc={nproc!r} is not a number of ranks: use a whole number from 1.")
    if worker is None:
        if nproc is not None and nproc > _MOST_RANKS:
            raise ValueError(
                f"nproc={nproc} is more than {_MOST_RANKS}, the most ranks that are started on one "
                "machine: each is a process with torch in it."
            )
        return nproc or DEFAULT_RANKS
    if nproc not in (None, worker.world_size):
        raise ValueError(
            f"nproc={nproc}, but {worker.launcher} started {worker.world_size} ranks: "
            "leave nproc out."
        )
    return worker.world_size


def check_timeout(seconds: float) -> None:
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not 0 < seconds <= _LONGEST:
        raise ValueError(
            f"timeout={seconds!r} is not a time limit: "
            f"use seconds, more than 0 and at most {_LONGEST:g}."
        )


def check_loopback(backend: str) -> None:
    """Ranks on one machine connect over it. In a new network namespace (`unshare`) it is down."""
    if backend not in ("gloo", "nccl"):
        return
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((address, 9))  # this sends nothing
            return
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):  # no descriptor is left
                return
    raise Unavailable(
        f"{backend} connects the ranks over loopback, which is down: `ip link set lo up` starts it."
    )


def check_debug_level() -> None:
    """torch reads this variable in each rank, where it could only end the rank."""
    level = os.environ.get("TORCH_DISTRIBUTED_DEBUG", "OFF")
    if level.upper() not in ("OFF", "INFO", "DETAIL"):
        raise ValueError(
            f"TORCH_DISTRIBUTED_DEBUG={level} is not known to torch: use OFF, INFO or DETAIL."
        )
