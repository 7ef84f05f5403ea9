"""Whether a launcher started this process: torchrun, mpiexec or srun; as which rank; its store."""

import datetime
import functools
import ipaddress
import os
import re
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

from collectives.process_groups.mpi import installation
from collectives.recording import launchers

if TYPE_CHECKING:
    import torch.distributed as dist

# The variables that identify a worker of each launcher. The worker's own children inherit them, but
# are not workers.
_TORCHRUN = ("TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_SLURM_RANK, _SLURM_SIZE, _SLURM_LOCAL_RANK = launchers.SLURM
_SLURM = ("SLURM_JOB_ID", "SLURM_STEP_ID", _SLURM_RANK)
_UNSET = (
    "torchrun, mpiexec and srun set all of their variables: start this process with one of them, "
    "or unset what one left, to let it start its own ranks."
)
_LOCAL_RANK, _LOCAL_SIZE = zip(
    *(names[2:] for names in (launchers.TORCHRUN, *launchers.MPI)), strict=True
)

_launcher_store: "dist.Store | None" = None


@dataclass(frozen=True)
class Worker:
    """A process that a launcher started: one rank of the launcher's world."""

    launcher: str
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int

    @property
    def on_one_machine(self) -> bool:
        return self.local_world_size == self.world_size

    @property
    def uses_mpi(self) -> bool:
        return self.launcher in ("mpiexec", "srun --mpi")

    @property
    def store_address(self) -> tuple[str, int]:
        """Host and port of the store of torchrun or srun. (MPI tells its ranks itself.)"""
        environ = os.environ
        if "MASTER_ADDR" in environ and "MASTER_PORT" in environ:
            return environ["MASTER_ADDR"], _number("MASTER_PORT")
        # Nobody hands out a port in Slurm. Steps that may run at the same time get different ones,
        # outside of the range from which the system chooses.
        number = 7 * _number("SLURM_JOB_ID") + _number("SLURM_STEP_ID")
        host = "127.0.0.1" if self.on_one_machine else _first_host(_text("SLURM_STEP_NODELIST"))
        return host, 15_000 + number % 15_000

    @property
    def environment(self) -> dict[str, str]:
        """What a rank finds in its environment under torchrun, and misses under srun.

        Libraries read it: Accelerate does not know Slurm's own variables.
        """
        if not self.launcher.startswith("srun"):
            return {}
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_world_size),
        }

    @property
    def backend(self) -> str | None:
        """The default backend of this launcher's ranks; None if it depends on the machine."""
        return "mpi" if self.uses_mpi else None


def launcher_worker() -> Worker | None:
    """This process as a direct worker of torchrun, mpiexec or srun; None for any other process.

    Raises ValueError if no launcher has set the variables that are here: RANK alone, or some of a
    launcher's that tell no world.
    """
    environ = os.environ
    if "TORCHELASTIC_RUN_ID" in environ:
        return _worker("torchrun", "RANK", "WORLD_SIZE") if _is_direct(_TORCHRUN) else None
    in_step = "SLURM_STEP_ID" in environ
    for rank, size, *_ in launchers.MPI:
        if rank in environ:
            if in_step and not any(name in environ for name in _LOCAL_SIZE):
                break  # srun --mpi: Slurm knows who shares a machine
            identity = (rank, size, "PMI_FD", "PMIX_NAMESPACE")
            return _worker("mpiexec", rank, size) if _is_direct(identity) else None
    if in_step and _number(_SLURM_SIZE, 1) > 1:
        return _slurm_worker() if _is_direct(_SLURM) else None
    if "RANK" in environ:
        raise ValueError(
            f"RANK={environ['RANK']} is set, but neither torchrun, mpiexec nor srun started this "
            "process: start it with torchrun, or unset RANK to let it start its own ranks."
        )
    return None


def is_alone_or_rank(rank: int) -> bool:
    """Whether no launcher started this process, or it is this rank of the launcher's world."""
    try:
        worker = launcher_worker()
    except ValueError:  # RANK is set, but nothing else of a launcher
        return True
    return worker is None or worker.rank == rank


def launcher_store(worker: Worker, timeout: float) -> "dist.Store":
    """The launcher's own store, opened once. Give it a prefix: keys must never be used twice."""
    global _launcher_store
    if _launcher_store is None:
        import torch.distributed as dist

        patience = datetime.timedelta(seconds=timeout)
        if worker.launcher == "srun":
            _launcher_store = _store_of_step(worker, patience)
        else:
            where = "mpi://" if worker.uses_mpi else "env://"
            _launcher_store, _, _ = next(dist.rendezvous(where, timeout=patience))
    return _launcher_store


def _store_of_step(worker: Worker, patience: datetime.timedelta) -> "dist.TCPStore":
    """srun has no store for its ranks: rank 0 opens one, at the address where the others expect it.

    It listens at this address alone: whoever reaches the store can end the launch.
    """
    import torch.distributed as dist

    host, port = worker.store_address
    connect = functools.partial(dist.TCPStore, wait_for_workers=False, timeout=patience)
    if worker.rank:
        return connect(host, port, is_master=False)
    cannot = f"rank 0 cannot open the store of this Slurm step at {host}, port {port}:"
    choose = "Choose another address: export MASTER_ADDR and MASTER_PORT before srun."
    try:
        listener = socket.create_server((host, port), backlog=max(128, worker.world_size))
    except OSError as error:
        raise ValueError(f"{cannot} {error.strerror}. {choose}") from error
    address = listener.getsockname()[0]
    fd = listener.detach()
    if not worker.on_one_machine and ipaddress.ip_address(address).is_loopback:
        os.close(fd)
        raise ValueError(f"{cannot} this is {address}, which no other machine reaches. {choose}")
    return connect(address, port, is_master=True, master_listen_fd=fd)


def _worker(launcher: str, rank: str, size: str) -> Worker:
    """`rank` and `size` are names of variables."""
    world_size = _number(size, 1)
    own_rank = _number(rank, 0, world_size)
    return Worker(
        launcher,
        own_rank,
        world_size,
        _first_number(_LOCAL_RANK, own_rank),
        _first_number(_LOCAL_SIZE, world_size),
    )


def _slurm_worker() -> Worker:
    is_offered = any(rank in os.environ for rank, *_ in launchers.MPI)
    world_size = _number(_SLURM_SIZE, 1)
    tasks = _tasks(_text("SLURM_STEP_TASKS_PER_NODE"))
    # Some clusters offer MPI to every step. A program that cannot load it uses a store.
    return Worker(
        "srun --mpi" if is_offered and installation.fault() is None else "srun",
        _number(_SLURM_RANK, 0, world_size),
        world_size,
        _number(_SLURM_LOCAL_RANK),
        tasks[_number("SLURM_NODEID", 0, len(tasks))],
    )


def _tasks(per_node: str) -> list[int]:
    """How many tasks each node has: "2(x3),1" stands for 2, 2, 2, 1."""
    counts = re.findall(r"(\d+)(?:\(x(\d+)\))?", per_node)
    if not counts:
        raise ValueError(f"SLURM_STEP_TASKS_PER_NODE={per_node} holds no number. {_UNSET}")
    return [int(count) for count, times in counts for _ in range(int(times or 1))]


def _first_host(hosts: str) -> str:
    """The first of Slurm's list of hosts: node08 of "node[08-11,15],other"."""
    found = re.match(r"([^\[,]*)(?:\[(\d+)[^\]]*\])?([^\[,]*)", hosts)
    return "".join(found.groups("")) if found else hosts


def _first_number(names: tuple[str, ...], default: int) -> int:
    return next((_number(name) for name in names if name in os.environ), default)


def _number(name: str, least: int = 0, end: int | None = None) -> int:
    """The number in a launcher's variable, from `least` to before `end`."""
    text = _text(name)
    number = int(text) if text.isdecimal() else -1
    if number >= least and (end is None or number < end):
        return number
    wanted = f"from {least} to {end - 1}" if end is not None else f"from {least}"
    raise ValueError(f"{name}={text} is not a whole number {wanted}. {_UNSET}")


def _text(name: str) -> str:
    if name in os.environ:
        return os.environ[name]
    shown = ", ".join(
        f"{name}={os.environ[name]}" for name in launchers.SIGNS if name in os.environ
    )
    raise ValueError(f"{shown} is set, but {name} is not. {_UNSET}")


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
