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


# A world that is interrupted, then a world of each backend, until somebody ends the caller.
PROGRAM = """
import os, sys, threading, time, torch
import torch.distributed as dist
from collectives import launch

def wait_for_ever(rank, world_size, device, file):
    dist.all_reduce(torch.ones(3))
    with open(f"{file}-{rank}", "w") as file:
        file.write(f"{os.getpid()}.")
    if rank == 0:
        time.sleep(60)
    dist.barrier()

def world(backend, name):
    launch(wait_for_ever, 2, args=(f"{sys.argv[1]}/{name}",), backend=backend)

try:
    world("mpi", "interrupted")
except KeyboardInterrupt:
    print("interrupted", flush=True)
for backend in ("mpi", "by_hand"):
    threading.Thread(target=world, args=(backend, backend), daemon=True).start()
time.sleep(60)
"""


class Ranks:
    """The two ranks of a world when they wait for ever, and what they hold."""

    def __init__(self, file: Path):
        files = [file.with_name(f"{file.name}-{rank}") for rank in range(2)]
        wait_until(lambda: all(one.exists() and one.read_text().endswith(".") for one in files))
        self.processes = [psutil.Process(int(one.read_text().strip("."))) for one in files]
        self.memory = shared_memory(self.processes[1].pid)
        self.sockets = {inode for one in self.processes for inode in unix_sockets(one.pid)}

    def wait_until_gone(self):
        wait_until(lambda: not any(map(is_alive, self.processes)), 5)
        wait_until(lambda: not self.sockets & known_unix_sockets(), 10)
        assert not any(file.exists() for file in self.memory)


@needs_mpi
@needs_by_hand
@pytest.mark.parametrize("name", ["SIGKILL", pytest.param("SIGTERM", marks=pytest.mark.slow)])
def test_however_the_caller_ends_no_rank_is_left_no_socket_and_no_file(name, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, tmp_path],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=hear_signals,
    )
    try:
        interrupted = Ranks(tmp_path / "interrupted")
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does it: to everyone
        interrupted.wait_until_gone()
        mpi, by_hand = Ranks(tmp_path / "mpi"), Ranks(tmp_path / "by_hand")
        assert mpi.memory
        assert by_hand.sockets
        process.send_signal(getattr(signal, name))
        assert process.communicate(timeout=20)[0] == "interrupted\n"
    finally:
        process.kill()
    mpi.wait_until_gone()
    by_hand.wait_until_gone()
