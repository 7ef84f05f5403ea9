"""mpi4py without starting MPI at import, so that the fork server can import it for all ranks."""

import mpi4py

mpi4py.rc(initialize=False, finalize=True)

from mpi4py import MPI  # noqa: E402


def world() -> MPI.Intracomm:
    """The communicator of all ranks. The first call starts MPI in this process."""
    if not MPI.Is_initialized():
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
    return MPI.COMM_WORLD
