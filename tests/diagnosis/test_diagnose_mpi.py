"""`collectives diagnose -- mpiexec ...`: the same diagnosis where MPI starts the ranks and carries
their calls.
"""

import sys
import time
from pathlib import Path

import pytest
from diagnosing import diagnose
from our_backends import needs_mpi

from collectives.backends import availability

pytestmark = needs_mpi

PROGRAM = """
import os, signal, sys, torch, torch.distributed as dist
from collectives.backends import register

dist.init_process_group("mpi", init_method="mpi://")
rank, x, what = dist.get_rank(), torch.ones(4), sys.argv[1]
dist.all_reduce(x)
if what == "hang" and rank == 2:
    dist.recv(x, src=1)  # here
if what == "died" and rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
dist.all_reduce(x)
dist.destroy_process_group()
"""
LINE = PROGRAM[: PROGRAM.index("# here")].count("\n") + 1


# What rank 1 dies of does not depend on who started it: test_diagnose.py asks without MPI.
@pytest.mark.parametrize(
    ("kind", "rank"), [("hang", 2), pytest.param("died", 1, marks=pytest.mark.slow)]
)
def test_the_rank_and_the_line_are_named_under_mpiexec(kind, rank, tmp_path):
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    mpiexec = [availability.mpiexec(), "-n", "3", sys.executable, str(program), kind]
    before = _files_of_mpiexec()
    verdict, done = diagnose(tmp_path, *mpiexec, hang_after=4)
    until = time.monotonic() + 60
    while _files_of_mpiexec() - before:  # other tests may have theirs just now
        assert time.monotonic() < until
        time.sleep(0.2)
    guilty, *_ = verdict["guilty"]  # in a hang also the rank that does not send to it
    assert (verdict["verdict"], guilty["rank"]) == (kind, rank), done.stderr
    assert kind != "hang" or guilty["line"] == LINE


def _files_of_mpiexec():
    """The files in which mpiexec describes the machine to its ranks.

    It removes them if it ends well.
    """
    return set(Path("/tmp").glob("hydra_hwloc_xmlfile_*"))
