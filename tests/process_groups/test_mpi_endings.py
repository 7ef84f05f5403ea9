"""Launches over MPI: a failure names its rank and leaves none behind; a missing extra is named."""

import os
import signal
import sys
import time

import pytest
import torch
import torch.distributed as dist
from our_backends import needs_mpi
from processes import children, finished

from collectives import LaunchError, launch

pytestmark = needs_mpi


def one_barrier(rank, world_size, device):
    dist.barrier()


@pytest.fixture(scope="module", autouse=True)
def launch_is_still_usable_at_the_end():
    launch(one_barrier, 1)  # the server of the ranks may stay
    yield
    launch(one_barrier, 2, backend="mpi")


def failing(fn, nproc=3, **options) -> LaunchError:
    """The error of a launch that fails; it leaves no rank behind."""
    before = children()
    with pytest.raises(LaunchError) as caught:
        launch(fn, nproc, backend="mpi", **options)
    assert children() <= before
    return caught.value


def test_a_rank_that_raises_is_named_while_the_others_wait_in_mpi():
    def fn(rank, world_size, device):
        if rank == 1:
            raise KeyError("no such thing")
        dist.barrier()

    error = failing(fn)
    assert (error.rank, error.kind) == (1, "raised")
    assert "KeyError: 'no such thing'" in str(error)


def test_a_rank_that_dies_in_the_midst_is_named_with_its_signal():
    def fn(rank, world_size, device):
        x = torch.ones(1)
        for number in range(10_000):
            dist.all_reduce(x)
            if rank == 2 and number == 50:
                os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(50)

    error = failing(fn)
    assert (error.rank, error.kind, error.signal) == (2, "died", signal.SIGKILL)


def test_a_rank_that_leaves_is_named_with_its_status():
    def fn(rank, world_size, device):
        if rank == 0:
            os._exit(3)
        dist.recv(torch.ones(1), src=0)

    error = failing(fn)
    assert (error.rank, error.kind, error.exitcode) == (0, "died", 3)


def test_a_hang_says_where_each_rank_stood():
    def fn(rank, world_size, device):
        if rank == 2:
            time.sleep(50)
        dist.barrier()

    error = failing(fn, timeout=4)
    assert (error.rank, error.kind) == (2, "hung")
    assert "in fn: dist.barrier()" in str(error)
    assert "in fn: time.sleep(50)" in str(error)


# Without the extra.


# `python -m collectives` where mpi4py cannot be imported.
WITHOUT_MPI4PY = (
    "import sys, runpy; sys.modules['mpi4py'] = None; "
    "runpy.run_module('collectives', run_name='__main__', alter_sys=True)"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", ["run barrier --backend mpi", "matrix --backend mpi --quick"], ids=["run", "matrix"]
)
def test_without_mpi4py_the_command_says_which_extra_to_install(command):
    done = finished(["python", "-c", WITHOUT_MPI4PY, *command.split()])
    assert "mpi needs mpi4py, which is not here: pip install 'torch-collectives[mpi]'" in " ".join(
        (done.stdout + done.stderr).split()
    )
    assert done.returncode == 3


def test_without_mpiexec_too(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    said = r"mpi needs mpiexec, which is not here: pip install 'torch-collectives\[mpi\]'"
    with pytest.raises(ValueError, match=said):
        launch(print, 2, backend="mpi")


class MalformedLine:
    """An argument that writes to the process manager of its rank before MPI starts there."""

    def __reduce__(self):
        return write_malformed_line, ()


def write_malformed_line() -> None:
    if os.environ["PMI_RANK"] == "1":
        os.write(int(os.environ["PMI_FD"]), b"no command\n")


def test_a_line_that_is_not_pmi_ends_the_launch():
    error = failing(lambda rank, world_size, device, line: None, args=(MalformedLine(),))
    assert (error.rank, error.kind) == (1, "died"), error
