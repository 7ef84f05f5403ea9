"""What tests need to know of processes and ports."""

import contextlib
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil


def hear_signals() -> None:
    """As `preexec_fn`: let a program receive Ctrl-C and a hang-up.

    A test run in the background of a shell, or under nohup, ignores these signals, and the
    processes that it starts inherit that.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def is_alive(process: psutil.Process) -> bool:
    """Whether a process still runs.

    A zombie does not: it has ended, and nobody has read its status yet.
    """
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def children() -> set[psutil.Process]:
    """All living processes that descend from this one."""
    return {child for child in psutil.Process().children(recursive=True) if is_alive(child)}


def free_port() -> int:
    """A free port that the system gives to nobody by itself, as those of other tests."""
    while True:
        port = 20_000 + secrets.randbelow(10_000)
        with socket.socket() as found, contextlib.suppress(OSError):
            found.bind(("127.0.0.1", port))
            return port


@contextlib.contextmanager
def started(command: str, folder: Path, **environ: str):
    """As in a shell whose virtual environment is active. In the end no process is left."""
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    process = subprocess.Popen(
        shlex.split(command),
        cwd=folder,
        env=os.environ | {"PATH": path, "CUDA_VISIBLE_DEVICES": ""} | environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            # subtle: torchrun gives each rank a process group of its own.
            for one in [*psutil.Process(process.pid).children(recursive=True), process]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
        process.communicate()
