"""All processes of a program: to lose sight of none, and to leave none behind."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def adopt_orphans(wanted: int = 1) -> int:
    """Make orphans of our children our own, to lose sight of none; return the former setting."""
    if sys.platform != "linux":
        return 0
    libc, before = ctypes.CDLL(None), ctypes.c_int()
    libc.prctl(37, ctypes.byref(before))  # PR_GET_CHILD_SUBREAPER
    libc.prctl(36, wanted)  # PR_SET_CHILD_SUBREAPER
    return before.value


def end_with_parent() -> None:
    """In the child: if we are killed and can end nothing, the program gets SIGTERM."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def children() -> set:
    import psutil

    return set(psutil.Process().children())


def end_all(process: subprocess.Popen, folder: Path, others: set) -> None:
    """Kill what is left of the program: its process tree and its orphans, but not `others`."""
    import psutil

    _end_ranks(process, folder)
    until = time.monotonic() + 10
    while time.monotonic() < until:
        found = [
            one
            for one in _family(process, folder, others)
            if one.is_running() and one.status() != psutil.STATUS_ZOMBIE
        ]
        if not found:
            break
        for one in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(found, timeout=0.5)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5)


def _end_ranks(process: subprocess.Popen, folder: Path) -> None:
    """Kill the program's ranks and innermost processes. MPI's proxies then clean up and end.

    The command itself is stopped meanwhile, for it would only complain.
    """
    import psutil

    if process.poll() is not None:  # its number may be another's by now
        return
    with contextlib.suppress(psutil.Error):
        command = psutil.Process(process.pid)
        command.suspend()
        below, known = (
            command.children(recursive=True),
            {int(file.name.partition("-")[0]) for file in folder.glob("*.calls")},
        )
        between = [
            one
            for one in below
            if one.pid not in known and any(other.ppid() == one.pid for other in below)
        ]
        for one in sorted(
            set(below) - set(between), key=lambda one: one.pid not in known
        ):  # a rank, then the child it waits for
            one.kill()
        psutil.wait_procs(between, timeout=0.3)


def _family(process: subprocess.Popen, folder: Path, others: set) -> list:
    import psutil

    found: dict[int, psutil.Process] = {}
    for child in children() - others:  # the program, and the orphans that we adopted
        with contextlib.suppress(psutil.NoSuchProcess):
            found |= {one.pid: one for one in [child, *child.children(recursive=True)]}
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if one.pid != os.getpid() and one.environ().get("COLLECTIVES_DIAGNOSE") == str(folder):
                found[one.pid] = one
    return list(found.values())
