"""mpi4py without starting MPI at import, so that the fork server can import it for all ranks."""

from typing import Any

import mpi4py

mpi4py.rc(initialize=False, finalize=True)

from mpi4py import MPI  # noqa: E402

__all__ = ["MPI", "progress", "receive", "several_machines", "world"]

# Whether the world's ranks are on more than one machine. The store, which asks them, sets it.
several_machines = False


def world() -> MPI.Intracomm:
    """The communicator of all ranks. The first call starts MPI in this process."""
    if not MPI.Is_initialized():
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
    return MPI.COMM_WORLD


def receive(comm: MPI.Comm, buffer: list[Any], source: int, tag: int) -> "MPI.Request | _AnySource":
    """Irecv, as a request that can be polled."""
    if source == MPI.ANY_SOURCE and several_machines:
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
