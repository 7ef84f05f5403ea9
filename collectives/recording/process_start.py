"""What a process under diagnosis notes of itself at its start, for the time before it is a rank.

A file `PID.start` in the parent's folder. It comes first of all, since what follows, such as the
imports of the program, may take minutes. A process of multiprocessing notes itself once more.
"""

import json
import os
import sys
import time

from . import launchers, stack


def note(folder: str, process=None) -> None:
    """Write who this process is. `process`: of multiprocessing, the object that it runs.

    `parent`: who started it, also if that was by a fork server. `environ`: the launchers'
    variables. `runs`: the name of what a process of multiprocessing runs; None for another.
    `is_helper`: that is a library's own, such as a worker of a DataLoader.
    """
    parent = getattr(process, "_parent_pid", None)
    recorded = {
        "parent": os.getppid() if parent is None else parent,
        "at": time.monotonic_ns(),
        "command": sys.orig_argv,
        "environ": launchers.recorded(os.environ),
        "runs": None,
        "is_helper": False,
    }
    if process is not None:
        recorded["runs"], recorded["is_helper"] = _what_it_runs(process)
    path = os.path.join(folder, f"{os.getpid()}.start")
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        json.dump(recorded, file)
    os.replace(f"{path}.new", path)  # whoever reads it reads all of it


def _what_it_runs(process) -> tuple[str, bool]:
    target = _named(getattr(process, "_target", None) or type(process))
    if target.__qualname__ == "_wrap":  # torch.multiprocessing wraps what the program gave it
        given = next(filter(callable, getattr(process, "_args", ())), target)
        return f"{_name(target)} of {_name(_named(given))}", False
    file = getattr(sys.modules.get(target.__module__ or ""), "__file__", None)
    return _name(target), file is not None and stack.is_library(file)


def _named(what):
    """The function, or the class of an object that can be called."""
    what = getattr(what, "func", what)  # of functools.partial
    return what if hasattr(what, "__qualname__") else type(what)


def _name(what) -> str:
    return f"{what.__module__}.{what.__qualname__}"
