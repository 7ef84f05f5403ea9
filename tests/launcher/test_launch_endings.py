"""However the caller ends, after 5 s no rank and no file is left."""

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import psutil
import pytest
from processes import hear_signals, is_alive

PROGRAM = """
import ctypes, os, pathlib, signal, sys, time
import torch
from collectives import LaunchError, launch

def sleepers(rank, world_size, device):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    fork = os.fork()
    if fork == 0:
        time.sleep(60)
    (pathlib.Path(sys.argv[1]) / f"fork-{rank}").write_text(str(fork))
    (pathlib.Path(sys.argv[1]) / f"pid-{rank}").write_text(str(os.getpid()))
    if rank == 0 and sys.platform == "linux":
        ctypes.PyDLL(None).sleep(60)  # keeps the interpreter lock
    time.sleep(60)
"""


@pytest.fixture
def short():
    """A folder with a short path: that of a socket has at most 107 characters."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture
def caller(tmp_path, short):
    """Start a program whose ranks sleep.

    Gives its process, the processes of its ranks, then of what these have forked, and the folder
    for its temporary files.
    """
    started = []

    def begin(body: str):
        (tmp_path / "program.py").write_text(PROGRAM + textwrap.dedent(body))
        folder = short / "tmp"
        folder.mkdir()
        process = subprocess.Popen(
            [sys.executable, tmp_path / "program.py", tmp_path],
            env=os.environ | {"TMPDIR": str(folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=hear_signals,
        )
        started.append(process)
        files = [tmp_path / f"pid-{rank}" for rank in range(2)]
        until = time.monotonic() + 40
        while not all(file.exists() and file.read_text() for file in files):
            assert time.monotonic() < until, process.communicate(timeout=5)
            time.sleep(0.05)
        time.sleep(0.2)
        files += tmp_path.glob("fork-*")
        pids = [int(file.read_text()) for file in files]
        for file in files:
            file.unlink()
        return process, [psutil.Process(pid) for pid in pids], folder

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def all_gone_within_5_seconds(processes) -> bool:
    until = time.monotonic() + 5
    while time.monotonic() < until:
        if not any(map(is_alive, processes)):
            return True
        time.sleep(0.05)
    return False


def is_empty(folder: Path) -> bool:
    until = time.monotonic() + 5
    # The server tidies up after a parent that could not.
    while any(folder.iterdir()) and time.monotonic() < until:
        time.sleep(0.05)
    return not any(folder.iterdir())


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("SIGKILL", "forkserver"),
        ("SIGINT", "forkserver"),
        pytest.param("SIGTERM", "forkserver", marks=pytest.mark.slow),
        *(pytest.param(f"SIG{end}", "spawn", marks=pytest.mark.slow) for end in ("KILL", "INT")),
    ],
)
def test_no_rank_and_no_file_outlives_the_caller(caller, name, method):
    # Without the fork server, nothing is left that could remove the record of a killed caller.
    record = "calls" if method == "forkserver" else None
    body = f"launch(sleepers, 2, start_method={method!r}, record={record!r})\n"
    process, ranks, folder = caller(body)
    helpers = set(psutil.Process(process.pid).children(recursive=True)) - set(ranks)
    process.send_signal(getattr(signal, name))
    assert all_gone_within_5_seconds(ranks)
    process.wait(timeout=10)
    assert all_gone_within_5_seconds(helpers), "the server and the resource tracker"
    assert is_empty(folder)


def test_ctrl_c_in_a_terminal_reaches_all_processes_and_gives_one_traceback(caller):
    process, ranks, _ = caller("launch(sleepers, 2)\n")
    os.killpg(process.pid, signal.SIGINT)
    assert all_gone_within_5_seconds(ranks)
    _, err = process.communicate(timeout=10)
    assert err.count("Traceback") == 1
    assert err.endswith("KeyboardInterrupt\n")


@pytest.mark.slow
def test_a_caller_with_its_own_sigint_handler_gets_its_results(caller):
    body = """
    signal.signal(signal.SIGINT, lambda *_: print("noted", flush=True))
    def nap(rank, world_size, device):
        (pathlib.Path(sys.argv[1]) / f"pid-{rank}").write_text(str(os.getpid()))
        time.sleep(2)
        return rank
    print(launch(nap, 2))
    """
    process, _, _ = caller(body)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert out == "noted\n[0, 1]\n", err


@pytest.mark.slow
def test_after_an_interrupt_the_caller_can_launch_again(caller):
    body = """
    try:
        launch(sleepers, 2)
    except KeyboardInterrupt:
        print("interrupted", launch(lambda rank, world_size, device: rank, 3))
    """
    process, ranks, _ = caller(body)
    process.send_signal(signal.SIGINT)
    assert all_gone_within_5_seconds(ranks)
    out, err = process.communicate(timeout=20)
    assert out == "interrupted [0, 1, 2]\n", err


def test_after_the_fork_server_was_killed_the_caller_gets_an_error_and_can_launch_again(caller):
    body = """
    try:
        launch(sleepers, 2)
    except LaunchError as error:
        print(error.kind, launch(lambda rank, world_size, device: rank, 3))
    """
    process, ranks, _ = caller(body)
    ranks[0].parent().kill()
    out, err = process.communicate(timeout=20)
    assert all_gone_within_5_seconds(ranks)
    assert out == "died [0, 1, 2]\n", err
