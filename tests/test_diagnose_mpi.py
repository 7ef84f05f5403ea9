"""`collectives diagnose -- mpiexec ...`: the same diagnosis where MPI starts the ranks and carries
their calls.
"""

import sys
import time
from pathlib import Path

import pytest
from diagnosing import diagnose

from collectives.backends import availability as backends
from collectives.process_groups.mpi import installed

pytestmark = pytest.mark.skipif(
    backends.missing_for_mpi() is not None, reason="needs the extra collectives[mpi]"
)

PROGRAM = """
import os, signal, sys, torch, torch.distributed as dist
from collectives.backends import register

dist.init_process_group("mpi", init_method="mpi://")
rank, x, what = dist.get_rank(), torch.ones(4), sys.argv[1]
dist.all_reduce(x)
if what == "skips" and rank == 2:
    dist.recv(x, src=1)  # skips
if what == "differs":
    dist.all_reduce(x, op=dist.ReduceOp.MAX if rank == 1 else dist.ReduceOp.SUM)  # differs
if what == "raises" and rank == 1:
    raise KeyError("loss")  # raises
if what == "dies" and rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
dist.all_reduce(x)
dist.destroy_process_group()
"""
LINES = {line.partition("# ")[2]: number for number, line in enumerate(PROGRAM.splitlines(), 1)}


@pytest.mark.parametrize(
    ("what", "kind", "ranks"),
    [
        pytest.param("healthy", "ok", [], marks=pytest.mark.slow),
        ("skips", "hang", [2]),
        # Neither depends on who started the ranks: test_diagnose.py asks for them without MPI.
        pytest.param("differs", "mismatch", [1], marks=pytest.mark.slow),
        pytest.param("raises", "raised", [1], marks=pytest.mark.slow),
        pytest.param("dies", "died", [1], marks=pytest.mark.slow),
    ],
)
def test_the_rank_and_the_line_are_named_under_mpiexec(what, kind, ranks, tmp_path):
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    mpiexec = [installed.mpiexec(), "-n", "3", sys.executable, str(program), what]
    before = _files_of_mpiexec()
    verdict, done = diagnose(tmp_path, *mpiexec, hang_after=4)
    until = time.monotonic() + 60
    while _files_of_mpiexec() - before:  # other tests may have theirs just now
        assert time.monotonic() < until
        time.sleep(0.2)
    assert (verdict["verdict"], [one["rank"] for one in verdict["guilty"]]) == (kind, ranks), (
        done.stderr
    )
    assert done.returncode == (kind != "ok")
    assert all(one["line"] == LINES[what] for one in verdict["guilty"] if what in LINES)


def _files_of_mpiexec():
    """The files in which mpiexec describes the machine to its ranks.

    It removes them if it ends well.
    """
    return set(Path("/tmp").glob("hydra_hwloc_xmlfile_*"))
