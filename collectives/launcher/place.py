"""Which world this process stands in: a direct worker of torchrun or mpiexec, or none yet."""

import os
from dataclasses import dataclass

import psutil

# What names a worker of each launcher. A worker's own children inherit the same words, and are no workers.
_TORCHRUN = ("TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_MPI = {"PMI": ("PMI_RANK", "PMI_SIZE"), "OMPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")}
_LOCAL_SIZE = ("LOCAL_WORLD_SIZE", "MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE")
_LOCAL_RANK = ("LOCAL_RANK", "MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK")


@dataclass(frozen=True)
class Place:
    """This process's place in a world that a launcher started."""

    launcher: str
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int

    @property
    def one_machine(self) -> bool:
        return self.local_world_size == self.world_size

    @property
    def backend(self) -> str | None:
        """What the ranks speak unless something else is asked for; None where that depends on the machine."""
        return "mpi" if self.launcher == "mpiexec" else None


def joined() -> Place | None:
    """The place in torchrun's or mpiexec's world; None for a process that is to start its own. ValueError for half a world."""
    environ = os.environ
    if "TORCHELASTIC_RUN_ID" in environ:
        return _place("torchrun", "RANK", "WORLD_SIZE") if _is_direct(_TORCHRUN) else None
    for rank, size in _MPI.values():
        if rank in environ and size in environ:
            return (
                _place("mpiexec", rank, size)
                if _is_direct((rank, size, "PMI_FD", "PMIX_NAMESPACE"))
                else None
            )
    if "RANK" in environ:
        raise ValueError(
            f"RANK={environ['RANK']} is set, but neither torchrun nor mpiexec started this process: start it with torchrun, or "
            "unset RANK to let it start its own ranks."
        )
    return None


def _place(launcher: str, rank: str, size: str) -> Place:
    environ = os.environ
    world_size = int(environ[size])
    local_rank = next(
        (int(environ[name]) for name in _LOCAL_RANK if name in environ), int(environ[rank])
    )
    local_size = next((int(environ[name]) for name in _LOCAL_SIZE if name in environ), world_size)
    return Place(launcher, int(environ[rank]), world_size, local_rank, local_size)


def _is_direct(identity: tuple[str, ...]) -> bool:
    """Whether the launcher itself started this process, perhaps through a shell or a profiler, and not one of its workers."""
    mine = [os.environ.get(name) for name in identity]
    try:
        for parent in psutil.Process().parents():
            theirs = parent.environ()
            if [theirs.get(name) for name in identity] != mine:
                return True
            if "python" in parent.name():
                return False
    except psutil.Error:  # a parent that we may not look at is not a worker of ours
        pass
    return True
