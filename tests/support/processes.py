"""What tests need to know of processes and ports."""

import contextlib
import os
import re
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
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


def wait_until(condition: Callable[[], object], limit=150.0) -> None:
    """It must come true within so many seconds."""
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, f"not within {limit} s"
        time.sleep(0.01)


def free_port() -> int:
    """A free port that the system gives to nobody by itself, as those of other tests."""
    while True:
        port = 20_000 + secrets.randbelow(10_000)
        with socket.socket() as found, contextlib.suppress(OSError):
            found.bind(("127.0.0.1", port))
            return port


def shell_environment() -> dict[str, str]:
    """That of a shell whose virtual environment is active."""
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    return os.environ | {"PATH": path, "CUDA_VISIBLE_DEVICES": ""}


def finished(command: str | list, timeout=150, env=None, **options) -> subprocess.CompletedProcess:
    """A command that has run as in a shell, and what it printed."""
    words = shlex.split(command) if isinstance(command, str) else [str(word) for word in command]
    env = shell_environment() | (env or {})
    streams = {"capture_output": True, "text": True}
    done = subprocess.run(words, env=env, timeout=timeout, **streams, **options)
    done.stdout = printed(done.stdout)
    return done


def printed(text: str) -> str:
    """Without the lines that gloo of torch 2.9 prints of each group by itself.

    Below torchrun it writes a line in pieces, and those of several ranks mix.
    """
    pieces = r"\[Gloo\] Rank | is connected to | peer ranks\. |Expected number of .* is : |\n"
    numbers = rf"\d+(?={pieces})"
    return re.sub(rf"^\[Gloo\] Rank (?:{pieces}|{numbers})*", "", text, flags=re.MULTILINE)


@contextlib.contextmanager
def started(command: str, folder: Path, **environ: str):
    """A command that runs as in a shell. In the end no process is left."""
    process = subprocess.Popen(
        shlex.split(command),
        cwd=folder,
        env=shell_environment() | environ,
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
