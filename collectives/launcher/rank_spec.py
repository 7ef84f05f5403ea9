"""What a launch has to do, and the start-up parameters that each of its ranks gets for that."""

import linecache
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import reduction
from multiprocessing.util import get_temp_dir
from typing import IO, Any

from collectives.backends import availability, imported
from collectives.launcher.server import default_start_method
from collectives.launcher.worker import Worker
from collectives.process_groups.mpi import pmi

# Variables of torchrun's and mpiexec's own workers. A world that we start must not inherit them.
_FOREIGN = ("TORCHELASTIC_", "ROLE_", "GROUP_", "MASTER_", "PMI", "OMPI_", "MPI_LOCAL")


@dataclass(frozen=True)
class SharedRank:
    """A rank whose peers are started elsewhere: the worker that starts it, and their store."""

    worker: Worker
    store_host: str
    store_port: int
    store_prefix: str


@dataclass(frozen=True)
class LaunchSpec:
    """Start `nproc` ranks on this machine that call `fn`. launch.py has checked the arguments.

    With `shared_rank`, start only that rank of a larger world; `nproc` is then 1.
    """

    fn: Callable[..., Any]
    nproc: int
    args: tuple[Any, ...]
    backend: str
    device: str
    timeout: float  # seconds, for the whole launch
    start_method: str = field(default_factory=default_start_method)
    shared_rank: SharedRank | None = None


class Descriptor:
    """A file descriptor of the parent, duplicated into the rank when the rank starts."""

    def __init__(self, fd: int):
        self.fd = fd

    def __getstate__(self) -> Any:
        return reduction.DupFd(self.fd)

    def __setstate__(self, duplicate: Any) -> None:
        self.fd = duplicate.detach()


@dataclass(frozen=True)
class RankSpec:
    """Sent to the process of a rank when it starts."""

    rank: int
    world_size: int
    backend: str
    device: str
    timeout: float
    store: str | tuple[str, int, str]  # the path of a FileStore, or a TCPStore's host, port, prefix
    environ: dict[str, str]
    sources: dict[str, tuple[Any, ...]]  # entries of linecache
    modules: tuple[str, ...]  # the rank imports them: they register a backend
    stdout: Descriptor | None
    stderr: Descriptor | None
    pmi: Descriptor | None = None  # the socket where a rank of MPI asks who it is
    calls: Descriptor | None = None  # the file in which the rank records its calls


def for_world(launch: LaunchSpec, manager: pmi.Manager | None) -> tuple[list[RankSpec], IO[bytes]]:
    """A spec for each rank of a new world, and the file of their store, which the caller closes.

    `manager` answers the ranks of an MPI world; None for other backends.
    """
    nproc = launch.nproc
    file, path = _new_store()
    environ = _environ(nproc, nproc) | availability.rank_environment(launch.backend, nproc)
    common = _common_fields(launch, nproc, path)
    specs = []
    for rank in range(nproc):
        own, socket = _rank_variables(rank, rank), None
        if manager is not None:
            # UCX unlinks a file as soon as it has made it. If a rank is killed in between, the
            # file is removed with this process's temporary directory.
            own |= manager.environment(rank) | {"UCX_POSIX_DIR": get_temp_dir()}
            socket = Descriptor(manager.rank_ends[rank].fileno())
        specs.append(RankSpec(rank=rank, environ=environ | own, pmi=socket, **common))
    return specs, file


def for_shared_rank(launch: LaunchSpec, shared: SharedRank) -> RankSpec:
    """The spec of the one rank that we start in a world whose store belongs to somebody else."""
    worker = shared.worker
    environ = (
        _environ(worker.world_size, worker.local_world_size)
        | _rank_variables(worker.rank, worker.local_rank)
        | availability.rank_environment(
            launch.backend, worker.local_world_size, worker.on_one_machine
        )
    )
    store = shared.store_host, shared.store_port, shared.store_prefix
    common = _common_fields(launch, worker.world_size, store)
    return RankSpec(rank=worker.rank, environ=environ, **common)


def _environ(world_size: int, local_world_size: int) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    return own | {"WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(local_world_size)}


def _rank_variables(rank: int, local_rank: int) -> dict[str, str]:
    return {"RANK": str(rank), "LOCAL_RANK": str(local_rank)}


def _common_fields(
    launch: LaunchSpec, world_size: int, store: str | tuple[str, int, str]
) -> dict[str, Any]:
    """The fields of RankSpec that are the same for all ranks."""
    return {
        "world_size": world_size,
        "backend": launch.backend,
        "device": launch.device,
        "timeout": launch.timeout,
        "store": store,
        # A notebook cell has no file. Tracebacks and inspect need its source in the rank.
        "sources": {
            name: entry
            for name, entry in linecache.cache.items()
            if len(entry) == 4 and entry[1] is None
        },
        "modules": tuple(imported.modules),
        "stdout": _descriptor(1),
        "stderr": _descriptor(2),
    }


def _new_store() -> tuple[IO[bytes], str]:
    """An empty file for a FileStore, and its path. Closing the file deletes it.

    On Linux it has no name in any folder, so that nothing is left if this process is killed. (Where
    there is no /proc, as in a bare chroot, the ranks could not open it.) It is
    not a TCPStore, because a file does not listen on a port, and because each client of a TCPStore
    looks up the name of ::ffff:127.0.0.1 (seen in torch 2.13), which takes 5 s if the name server
    does not answer.
    """
    if sys.platform == "linux" and os.path.exists("/proc/self/fd"):
        memory = os.fdopen(os.memfd_create("store"), "w+b")
        return memory, f"/proc/{os.getpid()}/fd/{memory.fileno()}"
    file = tempfile.NamedTemporaryFile(prefix="store-", dir=get_temp_dir())  # noqa: SIM115  closed by the caller
    return file, file.name


def _descriptor(fd: int) -> Descriptor | None:
    """None if the caller has closed `fd`, or on Windows, which cannot duplicate it."""
    if sys.platform == "win32":
        return None
    try:
        os.fstat(fd)
    except OSError:
        return None
    return Descriptor(fd)
