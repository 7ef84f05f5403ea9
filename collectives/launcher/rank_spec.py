"""What each rank of a world that we start is told: who it is, where the others are, and its caller's surroundings."""

import linecache
import os
import sys
import tempfile
from dataclasses import dataclass
from multiprocessing.util import get_temp_dir
from typing import IO

from collectives.backends import availability as backends
from collectives.backends.mpi import pmi
from collectives.launcher.place import Place
from collectives.launcher.rank import Descriptor, Seat

# What torchrun and mpiexec tell their own workers; a world that we start is none of theirs.
_FOREIGN = ("TORCHELASTIC_", "ROLE_", "GROUP_", "MASTER_", "PMI", "OMPI_", "MPI_LOCAL")


@dataclass(frozen=True)
class Share:
    """One rank of a world whose other ranks are started elsewhere: its place there, and the store at which all of them meet."""

    place: Place
    store_host: str
    store_port: int
    store_prefix: str


def of_world(
    nproc: int, backend: str, device: str, timeout: float, mpi: pmi.Manager | None
) -> tuple[list[Seat], IO]:
    """The seats of a world of its own, and the file that is its store: close it in the end."""
    file, store = _new_store()
    environ = _environ(nproc, nproc) | backends.environment(backend, nproc)
    shared = _shared(nproc, backend, device, timeout, store)
    seats = []
    for rank in range(nproc):
        # UCX unlinks a file as soon as it has made it; should a rank be killed in between, the end of this process removes it.
        own = _who(rank, rank) | (
            mpi.environment(rank) | {"UCX_POSIX_DIR": get_temp_dir()} if mpi else {}
        )
        seats.append(
            Seat(
                rank=rank,
                environ=environ | own,
                mpi=Descriptor(mpi.theirs[rank].fileno()) if mpi else None,
                **shared,
            )
        )
    return seats, file


def of_share(share: Share, backend: str, device: str, timeout: float) -> tuple[list[Seat], None]:
    """The one seat of a share, whose store is somebody else's."""
    place = share.place
    environ = _environ(place.world_size, place.local_world_size) | _who(
        place.rank, place.local_rank
    )
    environ |= backends.environment(backend, place.local_world_size, place.one_machine)
    store = share.store_host, share.store_port, share.store_prefix
    return [
        Seat(
            rank=place.rank,
            environ=environ,
            mpi=None,
            **_shared(place.world_size, backend, device, timeout, store),
        )
    ], None


def _environ(world_size: int, local_world_size: int) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    return own | {"WORLD_SIZE": str(world_size), "LOCAL_WORLD_SIZE": str(local_world_size)}


def _who(rank: int, local_rank: int) -> dict[str, str]:
    return {"RANK": str(rank), "LOCAL_RANK": str(local_rank)}


def _shared(
    world_size: int, backend: str, device: str, timeout: float, store: str | tuple[str, int, str]
) -> dict:
    return {
        "world_size": world_size,
        "backend": backend,
        "device": device,
        "timeout": timeout,
        "store": store,
        # Cells of a notebook have no file: their source travels, for tracebacks and inspect.
        "sources": {
            name: entry
            for name, entry in linecache.cache.items()
            if len(entry) == 4 and entry[1] is None
        },
        "stdout": _descriptor(1),
        "stderr": _descriptor(2),
    }


def _new_store() -> tuple[IO, str]:
    """An empty file for a FileStore, and its path; closing it deletes it. In Linux it has no name: none is left by who is killed.

    Not a TCPStore: each of its clients asks the name server for the name of ::ffff:127.0.0.1 (seen in torch 2.13), and waits 5 s
    where the answer gets lost. Nor does a file listen.
    """
    if sys.platform == "linux":
        file = os.fdopen(os.memfd_create("store"), "w+b")
        return file, f"/proc/{os.getpid()}/fd/{file.fileno()}"
    file = tempfile.NamedTemporaryFile(prefix="store-", dir=get_temp_dir())  # noqa: SIM115  it outlives this call
    return file, file.name


def _descriptor(fd: int) -> Descriptor | None:
    try:
        os.fstat(fd)
    except OSError:
        return None
    return Descriptor(fd) if sys.platform != "win32" else None
