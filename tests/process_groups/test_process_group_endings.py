"""Nothing outlives the caller of our process groups, nothing listens for others, no file is left."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist
from our_backends import needs_by_hand, needs_mpi, on_both
from processes import hear_signals, is_alive, wait_until

from collectives import launch


def listening_and_files(rank, world_size, device):
    dist.new_group([0])
    dist.all_reduce(torch.ones(3))
    sockets = psutil.Process().net_connections("inet")
    listening = {one.laddr.ip for one in sockets if one.status == psutil.CONN_LISTEN}
    return listening, [file for file in shared_memory(os.getpid()) if file.exists()]


@on_both
def test_ranks_listen_on_loopback_at_most_and_leave_no_file(ours):
    allowed = {"127.0.0.1", "::1"} if ours == "mpi" else set()
    for listening, files in launch(listening_and_files, 3, backend=ours, timeout=60):
        assert listening <= allowed
        assert files == []


def shared_memory(pid: int) -> list[Path]:
    """The files in /dev/shm that a rank has open, or in its memory."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    words = [word for line in lines for word in line.split()]
    links = [os.readlink(path) for path in open_files(pid)]
    return [Path(text) for text in {*words, *links} if text.startswith("/dev/shm/")]


def open_files(pid: int) -> list[Path]:
    return [path for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink()]


def unix_sockets(pid: int) -> set[str]:
    """The inodes of the unix sockets that a process holds."""
    links = {os.readlink(path) for path in open_files(pid)}
    return {inode for inode in known_unix_sockets() if f"socket:[{inode}]" in links}


def known_unix_sockets() -> set[str]:
    return {line.split()[6] for line in Path("/proc/net/unix").read_text().splitlines()[1:]}


PROGRAM = """
import os, sys, time, torch
import torch.distributed as dist
from collectives import launch

def wait_for_ever(rank, world_size, device):
    dist.all_reduce(torch.ones(3))
    with open(f"{sys.argv[1]}/pid-{rank}", "w") as file:
        file.write(str(os.getpid()))
    if rank == 0:
        time.sleep(60)
    dist.barrier()

launch(wait_for_ever, 2, backend=sys.argv[2])
"""


@pytest.mark.parametrize(
    ("ours", "name"),
    [
        pytest.param("by_hand", "SIGKILL", marks=needs_by_hand),
        pytest.param("mpi", "SIGKILL", marks=needs_mpi),
        pytest.param("mpi", "SIGINT", marks=needs_mpi),
        pytest.param("mpi", "SIGTERM", marks=[needs_mpi, pytest.mark.slow]),
    ],
)
def test_however_the_caller_ends_no_rank_is_left_no_socket_and_no_file(ours, name, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, tmp_path, ours],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=hear_signals,
    )
    try:
        files = [tmp_path / "pid-0", tmp_path / "pid-1"]
        wait_until(lambda: all(file.exists() and file.read_text() for file in files))
        ranks = [psutil.Process(int(file.read_text())) for file in files]
        memory = shared_memory(ranks[1].pid)
        sockets = {inode for rank in ranks for inode in unix_sockets(rank.pid)}
        assert memory if ours == "mpi" else sockets
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
    wait_until(lambda: not sockets & known_unix_sockets(), 10)
    assert not any(file.exists() for file in memory)
