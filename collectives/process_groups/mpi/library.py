"""MPI by mpi4py, started when it is first used: its world, its store and its communicators.

Its import does not start MPI, so that the fork server can import it for all ranks.
"""

import contextlib
import datetime
import os
import socket
import time
from pathlib import Path
from typing import Any

import mpi4py
import torch.distributed as dist

mpi4py.rc(initialize=False, finalize=True)

from mpi4py import MPI  # noqa: E402

__all__ = ["MPI", "new_communicator", "open_store", "progress", "receive", "world"]

# Whether the world's ranks are on more than one machine: known once the store is open.
_several_machines = False

_store: dist.TCPStore | None = None


def world() -> MPI.Intracomm:
    """The communicator of all ranks. The first call starts MPI in this process."""
    if not MPI.Is_initialized():
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
    return MPI.COMM_WORLD


def receive(comm: MPI.Comm, buffer: list[Any], source: int, tag: int) -> "MPI.Request | _AnySource":
    """Irecv, as a request that can be polled."""
    if source == MPI.ANY_SOURCE and _several_machines:
        return _AnySource(comm, buffer, tag)
    return comm.Irecv(buffer, source, tag)


class _AnySource:
    """subtle: over several machines MPICH 5.0.2 never completes Irecv(ANY_SOURCE) if some ranks are
    on the receiver's machine and others are not. It does find such a message when it probes.
    """

    def __init__(self, comm: MPI.Comm, buffer: list[Any], tag: int):
        self.comm, self.buffer, self.tag = comm, buffer, tag
        self.request: MPI.Request | None = None

    def Test(self, status: MPI.Status) -> bool:
        if self.request is None:
            message = self.comm.Improbe(MPI.ANY_SOURCE, self.tag)
            if message is None:
                return False
            self.request = message.Irecv(self.buffer)
        return self.request.Test(status)


def progress() -> None:
    """Let MPI carry on. It sends and acknowledges only while a rank is in one of its functions."""
    MPI.COMM_WORLD.Iprobe()


def open_store(timeout: float) -> tuple[dist.Store, int, int]:
    """The store, which is opened only once; the rank; and the world size.

    Rank 0 holds it. It listens on loopback if all ranks are on one machine, else on the address of
    rank 0's host name. Raises RuntimeError if a rank does not come within `timeout` seconds.
    """
    global _several_machines, _store
    everyone = world()
    if _store is None:
        _complete(everyone.Ibarrier(), timeout)
        _forget_shared_memory()
        neighbours = everyone.Split_type(MPI.COMM_TYPE_SHARED)
        _several_machines = neighbours.size < everyone.size
        host = socket.gethostname() if _several_machines else "127.0.0.1"
        neighbours.Free()
        patience = datetime.timedelta(seconds=timeout)
        address = bytearray(300)
        if everyone.rank == 0:
            listener = socket.create_server((host, 0), backlog=max(128, everyone.size))
            port = listener.getsockname()[1]
            fd = listener.detach()
            _store = dist.TCPStore(
                host,
                port,
                is_master=True,
                wait_for_workers=False,
                timeout=patience,
                master_listen_fd=fd,
            )
            text = f"{host} {port}".encode()
            address[: len(text)] = text
        _complete(everyone.Ibcast(address), timeout)
        if everyone.rank:
            host, port = address.rstrip(b"\0").decode().split()
            _store = dist.TCPStore(
                host, int(port), is_master=False, wait_for_workers=False, timeout=patience
            )
    assert _store is not None
    return _store, everyone.rank, everyone.size


def _forget_shared_memory() -> None:
    """Unlink the file of the memory that MPICH's ranks share, once all have opened it.

    MPICH removes it in MPI_Finalize, which a killed rank does not reach.
    """
    with contextlib.suppress(OSError):  # no /proc, or another rank has done it
        for line in Path("/proc/self/maps").read_text().splitlines():
            if (file := line.split()[-1]).startswith("/dev/shm/mpich_shm_"):
                os.unlink(file)


def _complete(request: Any, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while not request.Test():
        if time.monotonic() > deadline:
            raise RuntimeError(
                f"not every rank had come to init_process_group, or launch, after {timeout:g} s "
                "[mpi]"
            )
        time.sleep(0.001)


def new_communicator(options: Any) -> MPI.Comm:
    """A communicator for the group's ranks. Only they take part.

    Each waits for the others up to the group's timeout. Raises ValueError if torch's rank is not
    MPI's rank.
    """
    everyone = world()
    ranks = options.global_ranks_in_group or list(range(options.group_size))
    own_rank = ranks[options.group_rank]
    if own_rank != everyone.rank or max(ranks) >= everyone.size:
        raise ValueError(
            f"rank {own_rank} of {len(ranks)} is rank {everyone.rank} of {everyone.size} to MPI: "
            "start the script with mpiexec, and take rank and world size from MPI "
            "(init_method='mpi://')."
        )
    # The ranks meet at the store first, because MPI itself has no timeout.
    if options.store.add("came", 1) == len(ranks):
        options.store.set("all came", "")
    options.store.wait(["all came"], options.timeout)
    _forget_shared_memory()
    group = everyone.group.Incl(ranks)
    comm = everyone.Create_group(group)
    group.Free()
    return comm
