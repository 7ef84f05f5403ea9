"""Launches over MPI: a failure names its rank, nothing outlives the caller, listens or is left."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist
from processes import children, hear_signals, is_alive

from collectives import LaunchError, launch
from collectives.backends import availability as backends

pytestmark = pytest.mark.skipif(
    backends.missing_for_mpi() is not None, reason="needs the extra collectives[mpi]"
)


def failing(fn, nproc=3, **options) -> LaunchError:
    """The error of a launch that fails; it leaves no rank behind, and another launch works."""
    launch(one_barrier, 1)  # the server of the ranks may stay
    before = children()
    with pytest.raises(LaunchError) as caught:
        launch(fn, nproc, backend="mpi", **options)
    assert children() <= before
    launch(one_barrier, 2, backend="mpi")
    return caught.value


def one_barrier(rank, world_size, device):
    dist.barrier()


def test_a_rank_that_raises_is_named_while_the_others_wait_in_mpi():
    def fn(rank, world_size, device):
        if rank == 1:
            raise KeyError("no such thing")
        dist.barrier()

    error = failing(fn)
    assert (error.rank, error.kind) == (1, "raised")
    assert "KeyError: 'no such thing'" in str(error)


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV", "SIGTERM"])
def test_a_rank_that_dies_in_the_midst_is_named_with_its_signal(name):
    def fn(rank, world_size, device):
        x = torch.ones(1)
        for number in range(10_000):
            dist.all_reduce(x)
            if rank == 2 and number == 50:
                os.kill(os.getpid(), getattr(signal, name))
                time.sleep(50)

    error = failing(fn)
    assert (error.rank, error.kind, error.signal) == (2, "died", getattr(signal, name))


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

    error = failing(fn, timeout=6)
    assert (error.rank, error.kind) == (2, "hung")
    assert "in fn: dist.barrier()" in str(error)
    assert "in fn: time.sleep(50)" in str(error)


def test_ranks_listen_nowhere_but_on_loopback_and_leave_no_file():
    def fn(rank, world_size, device):
        dist.new_group([0])
        dist.barrier()
        left = [file for file in shared_memory(os.getpid()) if file.exists()]
        return [
            c.laddr.ip for c in psutil.Process().net_connections() if c.status == psutil.CONN_LISTEN
        ], left

    results = launch(fn, 3, backend="mpi")
    assert {address for found, _ in results for address in found} <= {"127.0.0.1", "::1"}
    assert [left for _, left in results] == [[]] * 3


def shared_memory(pid: int) -> list[Path]:
    """The files of the memory that a rank shares with those of its machine."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return list({Path(word) for line in lines for word in line.split() if "mpich_shm" in word})


PROGRAM = """
import os, sys, time, torch
import torch.distributed as dist
from collectives import launch

def wait_for_ever(rank, world_size, device):
    with open(f"{sys.argv[1]}/pid-{rank}", "w") as file:
        file.write(str(os.getpid()))
    if rank == 0:
        time.sleep(60)
    dist.barrier()

launch(wait_for_ever, 2, backend="mpi")
"""


@pytest.mark.parametrize(
    "name", ["SIGINT", pytest.param("SIGTERM", marks=pytest.mark.slow), "SIGKILL"]
)
def test_however_the_caller_ends_no_rank_is_left_and_no_file(name, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, tmp_path],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=hear_signals,
    )
    try:
        files = [tmp_path / "pid-0", tmp_path / "pid-1"]
        until = time.monotonic() + 60
        while not all(file.exists() and file.read_text() for file in files):
            assert time.monotonic() < until
            time.sleep(0.05)
        ranks = [psutil.Process(int(file.read_text())) for file in files]
        memory = shared_memory(ranks[1].pid)
        assert memory
        if name == "SIGINT":  # as a terminal does it: to everyone
            os.killpg(process.pid, signal.SIGINT)
        else:
            process.send_signal(getattr(signal, name))
        _, errors = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == -getattr(signal, name)
    assert ("KeyboardInterrupt" in errors) == (name == "SIGINT")
    _, alive = psutil.wait_procs(ranks, timeout=5)
    assert not any(map(is_alive, alive))
    assert not any(file.exists() for file in memory)


# Without the extra.


def without_mpi4py(*command: str) -> subprocess.CompletedProcess:
    """Run `python -m collectives` where mpi4py cannot be imported."""
    hide = (
        "import sys, runpy; sys.modules['mpi4py'] = None; "
        "runpy.run_module('collectives', run_name='__main__', alter_sys=True)"
    )
    return subprocess.run(
        [sys.executable, "-c", hide, *command], capture_output=True, text=True, timeout=100
    )


@pytest.mark.parametrize(
    ("command", "status"),
    [(("run", "barrier", "--backend", "mpi"), 3), (("matrix", "--backend", "mpi", "--quick"), 3)],
    ids=["run", "matrix"],
)
def test_without_mpi4py_the_command_says_which_extra_to_install(command, status):
    done = without_mpi4py(*command)
    assert "mpi needs mpi4py, which is not here: pip install 'collectives[mpi]'" in " ".join(
        (done.stdout + done.stderr).split()
    )
    assert done.returncode == status


def test_without_mpiexec_too(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(
        ValueError, match=r"mpi needs mpiexec, which is not here: pip install 'collectives\[mpi\]'"
    ):
        launch(print, 2, backend="mpi")
