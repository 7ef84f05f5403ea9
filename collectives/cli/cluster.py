"""`collectives cluster`: the first command on new machines."""

import faulthandler
import sys

from collectives.cli import terminal
from collectives.course.console import print_text
from collectives.launcher.worker import Worker, launcher_worker
from collectives.launcher.world import World

STATUSES = (
    "Exit status: 0 all of it worked, 1 something did not, 2 bad usage, 3 nothing could be run "
    "here, 130 Ctrl-C."
)

_CELL = 30.0  # seconds for a cell of the matrix: a network may be slow
_MPI_CONNECTS = 30.0  # seconds until all machines must have a connection by MPI


def cluster() -> int:
    """Can all machines talk to each other? Then run every lesson, and the quick matrix.

    A launcher starts it on all machines, as in torchrun --nnodes 2 ... -m collectives cluster.
    Names each pair of machines that cannot connect. Rank 0 prints.
    """
    try:
        worker = launcher_worker()
        if worker is None:
            raise ValueError("start it with torchrun, srun or mpiexec: see docs/clusters.md.")
        if not _reach_each_other(worker):
            return 1
    except ValueError as error:
        return terminal.failed("collectives cluster", error)
    from collectives.cli.matrix import matrix
    from collectives.cli.run import run

    statuses = [run(every=True)]
    if worker.launcher == "mpiexec":
        if worker.rank == 0:
            print("The matrix is left out: it does not run under mpiexec.")
    else:
        statuses.append(matrix(backend=[World.chosen().backend], quick=True, timeout=_CELL))
    return terminal.status_of_all(statuses)


def _reach_each_other(worker: Worker) -> bool:
    """Whether all machines do; rank 0 says so, or which do not."""
    from collectives.launcher.reach import unreachable

    if worker.uses_mpi:  # it waits for ever for a machine that it cannot reach
        faulthandler.dump_traceback_later(_MPI_CONNECTS, exit=True)
    problems = unreachable(worker)
    faulthandler.cancel_dump_traceback_later()
    if worker.rank == 0 and not problems:
        print("All machines reach each other.")
    elif worker.rank == 0:
        print_text("\n".join(problems), stderr=True)
        print(
            "The ranks of a job connect to each other at ports that the system chooses: open all "
            "TCP ports between these machines, or name another network in GLOO_SOCKET_IFNAME.",
            file=sys.stderr,
        )
    return not problems
