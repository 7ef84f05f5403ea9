"""A world of ranks: how many, on which backend and device, and for how long; checked once."""

import errno
import os
import socket
from dataclasses import dataclass
from typing import Any

from collectives.backends import availability
from collectives.backends.availability import Unavailable
from collectives.launcher.worker import Worker, launcher_worker

DEFAULT_RANKS = 4

# Each rank is a process of about 10 MiB, so that many take 10 GiB. A larger number is a slip.
_MOST_RANKS = 1024

# In seconds, 31 years. torch counts a time limit in nanoseconds from the start of the machine, and
# in 64 bits: it gives up, or never waits, at 292 years.
_LONGEST = 1e9


@dataclass(frozen=True)
class World:
    """What is known of a world before it runs. `chosen` makes one from what somebody typed.

    `timeout`: in seconds, for each call in the world. `worker`: this process, if a launcher has
    started the ranks, else None. `asked`: which fields the user has named; the others are defaults.
    """

    nproc: int
    backend: str
    device: str
    timeout: float = 60.0
    worker: Worker | None = None
    asked: frozenset[str] = frozenset()

    @classmethod
    def chosen(
        cls,
        nproc: int | None = None,
        backend: str | None = None,
        device: str | None = None,
        timeout: float = 60.0,
    ) -> "World":
        """The launcher's world, or else a new one on this machine; None asks for the default.

        Raises ValueError, with the way out, for what cannot work, and Unavailable for what this
        machine lacks.
        """
        wanted = {"nproc": nproc, "backend": backend, "device": device}
        _check_timeout(timeout)
        _check_debug_level()
        worker = launcher_worker()
        nproc = world_size(nproc, worker)
        if worker is not None:
            backend = _launchers_backend(worker, backend)
        here = worker.local_world_size if worker else nproc
        backend, device = availability.choose(backend, device, here)
        if worker is None:
            _check_loopback(backend)
        asked = frozenset(name for name, value in wanted.items() if value is not None)
        return cls(nproc, backend, device, float(timeout), worker, asked)

    def named(self, field: str) -> Any:
        """What the user has asked for; None if the field has its default."""
        return getattr(self, field) if field in self.asked else None

    @property
    def ranks_here(self) -> int:
        """How many of the ranks run on this machine."""
        return self.worker.local_world_size if self.worker else self.nproc

    @property
    def note(self) -> str:
        """Why the GPUs of this machine are not used, if there are some and nobody has chosen."""
        gpus = availability.gpu_count()
        is_default = not {"backend", "device"} & self.asked and self.device == "cpu"
        if not is_default or not 0 < gpus < self.ranks_here:
            return ""
        have, share = ("1 GPU", "it") if gpus == 1 else (f"{gpus} GPUs", "them")
        newer = ".".join(map(str, availability.NCCL_SEVERAL_RANKS_PER_GPU))
        return (
            f"{self.backend} on cpu: {self.ranks_here} ranks, {have}; "
            f"--backend nccl shares {share} (NCCL {newer} or newer)"
        )

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that its ranks on this machine need."""
        on_one_machine = self.ranks_here == self.nproc
        return availability.rank_environment(self.backend, self.ranks_here, on_one_machine)


def _launchers_backend(worker: Worker, backend: str | None) -> str | None:
    """The backend of the group that the caller has in the launcher's world, else the wanted one."""
    import torch.distributed as dist

    if not dist.is_initialized():
        return backend or worker.backend
    current = dist.get_backend()
    if backend not in (None, current):
        raise ValueError(
            f"backend={backend!r}, but the caller's process group is {current}: leave backend out."
        )
    return current


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


def _check_timeout(seconds: float) -> None:
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not 0 < seconds <= _LONGEST:
        raise ValueError(
            f"timeout={seconds!r} is not a time limit: "
            f"use seconds, more than 0 and at most {_LONGEST:g}."
        )


def _check_loopback(backend: str) -> None:
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


def _check_debug_level() -> None:
    """torch reads this variable in each rank, where it could only end the rank."""
    level = os.environ.get("TORCH_DISTRIBUTED_DEBUG", "OFF")
    if level.upper() not in ("OFF", "INFO", "DETAIL"):
        raise ValueError(
            f"TORCH_DISTRIBUTED_DEBUG={level} is not known to torch: use OFF, INFO or DETAIL."
        )
