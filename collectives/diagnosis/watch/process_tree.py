"""All processes of a program: to lose sight of none, and to leave none behind."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil


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
    return set(psutil.Process().children())


def end_all(process: subprocess.Popen, folder: Path, others: set) -> None:
    """Kill what is left of the program: its process tree and its orphans, but not `others`."""
    _end_ranks(process, folder)
    until = time.monotonic() + 10
    found = _family(folder, others)
    while found and time.monotonic() < until:
        for one in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(found, timeout=0.5)
        found = _family(folder, others)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5)


def _end_ranks(process: subprocess.Popen, folder: Path) -> None:
    """Kill the program's ranks and innermost processes. MPI's proxies then clean up and end.

    The command itself is stopped meanwhile, for it would only complain.
    """
    if process.poll() is not None:  # its number may be another's by now
        return
    with contextlib.suppress(psutil.Error):
        command = psutil.Process(process.pid)
        command.suspend()
        below = command.children(recursive=True)
        known = {int(file.name.partition("-")[0]) for file in folder.glob("*.calls")}
        parents = {one.ppid() for one in below}
        between = [one for one in below if one.pid in parents - known]
        # A rank, then the child that it waits for.
        for one in sorted(set(below) - set(between), key=lambda one: one.pid not in known):
            one.kill()
        psutil.wait_procs(between, timeout=0.3)


def _family(folder: Path, others: set) -> set:
    """What runs of the program: its process tree, and the orphans that we adopted."""
    found = set()
    for child in children() - others:
        with contextlib.suppress(psutil.NoSuchProcess):
            found |= {child, *child.children(recursive=True)}
    for one in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if one.environ().get("COLLECTIVES_DIAGNOSE") == str(folder):
                found.add(one)
    return {one for one in found if one.pid != os.getpid() and _runs(one)}


def _runs(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
