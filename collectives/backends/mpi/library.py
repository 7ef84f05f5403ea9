"""MPI, which importing does not start: the server of the ranks can load it once for all of them (see start_server)."""

import mpi4py

mpi4py.rc(initialize=False, finalize=True)

from mpi4py import MPI  # noqa: E402


def world() -> MPI.Intracomm:
    """All ranks that were started together. The first call starts MPI in this process."""
    if not MPI.Is_initialized():
        MPI.Init_thread(MPI.THREAD_MULTIPLE)
    return MPI.COMM_WORLD
