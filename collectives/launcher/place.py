"""This process's place in the world that a launcher started: torchrun or mpiexec."""

import os
from dataclasses import dataclass

import psutil

# The variables that identify a worker of each launcher. The worker's own children inherit them, but
# are not workers.
_TORCHRUN = ("TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_MPI = {"PMI": ("PMI_RANK", "PMI_SIZE"), "OMPI": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")}
_LOCAL_SIZE = ("LOCAL_WORLD_SIZE", "MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE")
_LOCAL_RANK = ("LOCAL_RANK", "MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK")


@dataclass(frozen=True)
class Place:
    """A rank of a launcher's world."""

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
        """The default backend of this launcher's ranks; None if it depends on the machine."""
        return "mpi" if self.launcher == "mpiexec" else None


def launcher_place() -> Place | None:
    """The place of a direct worker of torchrun or mpiexec; None for any other process.

    Raises ValueError if RANK is set but no launcher started this process.
    """
    environ = os.environ
    if "TORCHELASTIC_RUN_ID" in environ:
        return _place("torchrun", "RANK", "WORLD_SIZE") if _is_direct(_TORCHRUN) else None
    for rank, size in _MPI.values():
        if rank in environ and size in environ:
            identity = (rank, size, "PMI_FD", "PMIX_NAMESPACE")
            return _place("mpiexec", rank, size) if _is_direct(identity) else None
    if "RANK" in environ:
        raise ValueError(
            f"RANK={environ['RANK']} is set, but neither torchrun nor mpiexec started this "
            "process: start it with torchrun, or unset RANK to let it start its own ranks."
        )
    return None


def _place(launcher: str, rank: str, size: str) -> Place:
    """`rank` and `size` are names of variables."""
    world_size = int(os.environ[size])
    return Place(
        launcher,
        int(os.environ[rank]),
        world_size,
        _first_number(_LOCAL_RANK, int(os.environ[rank])),
        _first_number(_LOCAL_SIZE, world_size),
    )


def _first_number(names: tuple[str, ...], default: int) -> int:
    return next((int(os.environ[name]) for name in names if name in os.environ), default)


def _is_direct(identity: tuple[str, ...]) -> bool:
    """Whether the launcher started this process, perhaps through a shell or a profiler.

    False for a process that one of the launcher's workers started. `identity` names the variables
    that such a process has inherited.
    """
    own = [os.environ.get(name) for name in identity]
    try:
        for parent in psutil.Process().parents():
            environ = parent.environ()
            if [environ.get(name) for name in identity] != own:
                return True
            if "python" in parent.name():
                return False
    except psutil.Error:  # a parent that we may not look at is not a worker of this user's launcher
        pass
    return True
