"""The processes below one, and which of them are the ranks of a job."""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from collectives.diagnosis.attach.place import place
from collectives.diagnosis.attach.stacks import ThreadStack
from collectives.recording import launchers

# By which variables a process may know its number, the surest first.
NUMBERS = (*(names[0] for names in (*launchers.ALL, launchers.PMIX)), "LOCAL_RANK")

# Threads that a process group starts in C++. A fork does not inherit them.
_GROUP_THREAD = re.compile("gloo|nccl|ucc", re.I)

# Files on the stacks of processes that help a rank, or that start ranks and wait for them.
_HELPERS = (
    "torch/utils/data/_utils/worker.py",
    "torch/utils/data/_utils/pin_memory.py",
    "torch/_inductor/compile_worker/",
    "multiprocessing/resource_tracker.py",
    "multiprocessing/pool.py",
    "multiprocessing/managers.py",
    "concurrent/futures/process.py",
    "joblib/externals/loky/",
)
_STARTERS = (
    "torch/distributed/elastic/agent/",
    "torch/distributed/launcher/api.py",
    "deepspeed/launcher/",
)
_WAITS_FOR_CHILDREN = ("subprocess.py", "multiprocessing/popen_fork.py", "multiprocessing/spawn.py")


@dataclass
class Member:
    """One process of the family. `threads` are filled in when its stacks are read."""

    pid: int
    parent: int
    command: list[str]
    environ: dict[str, str]
    is_python: bool
    has_torch: bool
    communicates: bool  # a process group of it has started threads
    is_zombie: bool = False
    threads: list[ThreadStack] | None = None
    is_shallow: bool = False  # it stood still, and its C++ frames are not known

    def has_on_stack(self, files: Iterable[str]) -> bool:
        main = next((one for one in self.threads or () if one.number == self.pid), None)
        return any(part in frame.file for frame in (main.frames if main else ()) for part in files)

    @property
    def is_inside(self) -> bool:
        return any(place(one.frames).inside for one in self.threads or ())

    @property
    def is_forkserver(self) -> bool:
        """It has only Python's own frames, and waits for orders to fork."""
        main = next((one for one in self.threads or () if one.number == self.pid), None)
        python = [frame for frame in (main.frames if main else ()) if not frame.native]
        return any("multiprocessing/forkserver.py" in one.file for one in python[:2])

    @property
    def helps(self) -> bool:
        return self.is_forkserver or self.has_on_stack(_HELPERS)

    @property
    def starts(self) -> bool:
        return self.has_on_stack(_STARTERS)

    @property
    def script(self) -> tuple[str, ...]:
        """What it runs, without the options of Python and the arguments."""
        return tuple(one for one in self.command[1:] if not one.startswith("-"))[:1]


def below(pid: int) -> dict[int, Member]:
    """The process and all below it, less ourselves. Raises ValueError if there is none."""
    try:
        top = psutil.Process(pid)
        family = [top, *top.children(recursive=True)]
    except psutil.NoSuchProcess:
        raise ValueError(f"there is no process {pid} on this machine.") from None
    ours = {os.getpid()}
    members: dict[int, Member] = {}
    for process in family:
        if process.pid in ours or (process.pid != pid and process.ppid() in ours):
            ours.add(process.pid)
            continue
        try:
            members[process.pid] = _member(process)
        except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
            continue
    return members


def _member(process: psutil.Process) -> Member:
    pid, parent = process.pid, process.ppid()
    if process.status() == psutil.STATUS_ZOMBIE:
        return Member(pid, parent, [], {}, False, False, False, is_zombie=True)
    try:
        maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")
        environ, exe = process.environ(), process.exe()
    except (psutil.AccessDenied, PermissionError):  # of another user: it may be a mere shell
        maps, environ, exe = "", {}, process.name()
    is_python = "python" in os.path.basename(exe) or "/libpython" in maps
    names = [_first_line(path) for path in Path(f"/proc/{pid}/task").glob("*/comm")]
    communicates = any(map(_GROUP_THREAD.search, names))
    has_torch = "/libtorch" in maps
    return Member(pid, parent, process.cmdline(), environ, is_python, has_torch, communicates)


def _first_line(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def ranks(members: dict[int, Member], top: int) -> list[Member]:
    """Those that are ranks, as far as environment, stacks and what they have loaded tell."""
    children: dict[int, list[int]] = {}
    for member in members.values():
        children.setdefault(member.parent, []).append(member.pid)

    def walk(pid: int, above: Member | None) -> list[Member]:
        process = members[pid]
        sure = _is_surely_rank(process, above)
        below = [
            rank
            for child in sorted(children.get(pid, ()))
            for rank in walk(child, process if sure else above)
        ]
        if sure or (below and _started_the_others(process, below)):
            return [process, *below]
        return below or ([process] if _may_be_rank(process, above) else [])

    return walk(top, None) if top in members else []


def _is_surely_rank(process: Member, above: Member | None) -> bool:
    if not process.is_python or process.helps or process.starts:
        return False
    if above is not None:  # a child of a rank may call, too, without being one
        return process.communicates or (process.is_inside and _has_other_number(process, above))
    return process.communicates or process.is_inside


def _may_be_rank(process: Member, above: Member | None) -> bool:
    if not process.is_python or process.helps or process.starts:
        return False
    if above is not None:
        return _has_other_number(process, above)
    return process.has_torch or any(name in process.environ for name in NUMBERS)


def _started_the_others(process: Member, below: list[Member]) -> bool:
    """Whether it is a rank that starts the others as scripts, and not only waits for them."""
    return (
        process.is_python
        and process.has_torch
        and not process.starts
        and not process.has_on_stack(_WAITS_FOR_CHILDREN)
        and any(
            rank.script == process.script and _has_other_number(rank, process) for rank in below
        )
    )


def _has_other_number(process: Member, above: Member) -> bool:
    return any(
        name in process.environ and process.environ[name] != above.environ.get(name)
        for name in NUMBERS
    )


def jobs(rank_processes: list[Member], members: dict[int, Member], top: int) -> list[list[Member]]:
    """The ranks of each job: those with one meeting point, else those that one process started."""
    together: dict[object, list[Member]] = {}
    starter = {
        process.pid: _starter(process, rank_processes, members, top) for process in rank_processes
    }
    for process in rank_processes:
        mates = [other for other in rank_processes if starter[other.pid] == starter[process.pid]]
        points = [_meeting_point(other) for other in mates]
        key = starter[process.pid] if None in points else _meeting_point(process)
        together.setdefault(key, []).append(process)
    return list(together.values())


def _meeting_point(process: Member) -> tuple | None:
    names = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")
    return (
        tuple(map(process.environ.get, names))
        if {"RANK", "MASTER_PORT"} <= process.environ.keys()
        else None
    )


def _starter(
    process: Member, rank_processes: list[Member], members: dict[int, Member], top: int
) -> int:
    """The nearest process above it, or itself, that has two ranks below it or is one of two."""
    pid = process.pid
    while pid != top and pid in members:
        if sum(pid in _line(rank.pid, members) for rank in rank_processes) > 1:
            return pid
        pid = members[pid].parent
    return top


def _line(pid: int, members: dict[int, Member]) -> list[int]:
    """A process and those above it."""
    line = []
    while pid in members:
        line.append(pid)
        pid = members[pid].parent
    return line
