"""Look twice at the ranks of a job that runs, from outside, and note where they stand."""

import itertools
import os
import shlex
import socket
import stat
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

from collectives.diagnosis.attach import movement, numbers
from collectives.diagnosis.attach.family import Member, below, jobs, ranks
from collectives.diagnosis.attach.place import StackPlace, stands
from collectives.diagnosis.attach.stacks import (
    NoRightError,
    ThreadStack,
    activity,
    is_stopped,
    py_spy,
    read,
)


def look(pid: int, between: float) -> dict:
    """Where the ranks below a process stand, as plain values; `report.write` makes them a text.

    Each is read twice, `between` seconds apart, which pauses it for milliseconds. One that stood
    still is read once more, with its C++ frames, which pauses it for about a tenth of a second.
    Raises ValueError if there is no such process, no right to read it, or nothing to read.
    """
    if sys.platform != "linux":
        raise ValueError("--pid reads /proc, which only Linux has.")
    program = py_spy()
    members = below(pid)
    python = [process for process in members.values() if process.is_python]
    if members and members[pid].is_zombie:
        raise ValueError(f"process {pid} has ended; its parent has not noticed yet.")
    if not python:
        raise ValueError(f"{_called(members, pid)} is no Python program, and none runs below it.")
    try:
        _read_all(program, python)
        rank_processes = ranks(members, pid)
        if not rank_processes:
            raise ValueError(_no_ranks(members, pid, python))
        states = _states(program, rank_processes, between)
        above = _above(members[pid], rank_processes)
        documents = [_job(job, members, states) for job in jobs(rank_processes, members, pid)]
    except NoRightError:
        raise ValueError(_no_right(pid)) from None
    return {
        "standing": pid,
        "machine": socket.gethostname(),
        "command": _short(members[pid].command),
        "between": between,
        "above": above,
        # Below a rank, its job's others are not to be expected.
        "jobs": [document | {"ended": []} for document in documents] if above else documents,
    }


def _states(
    program: Path, rank_processes: list[Member], between: float
) -> dict[int, tuple[str, str]]:
    """What each rank did between two looks, and why it could not be read; its latest stacks."""
    first = {process.pid: process.threads for process in rank_processes}
    before = {process.pid: _activities(process) for process in rank_processes}
    time.sleep(between)
    after = {process.pid: _activities(process) for process in rank_processes}
    why = _read_all(program, rank_processes)
    states = {}
    for process in rank_processes:
        if not process.threads:
            states[process.pid] = "unread" if _lives(process.pid) else "ended"
        elif is_stopped(process.pid):
            states[process.pid] = "stopped"
    looks = {
        process.pid: [first[process.pid] or [], process.threads or []] for process in rank_processes
    }

    def judge(rank: Member) -> str:
        return movement.state(
            rank.pid, looks[rank.pid], (before[rank.pid], after[rank.pid]), between
        )

    rest = [process for process in rank_processes if process.pid not in states]
    still = [process for process in rest if judge(process) != "moves"]
    _read_all(program, still, native=True)
    for process in still:
        if process.threads:
            looks[process.pid].append(process.threads)
        else:  # its C++ frames could not be read
            process.threads, process.is_shallow = looks[process.pid][1], True
    states |= {process.pid: judge(process) for process in rest}
    return {pid: (state, why.get(pid, "")) for pid, state in states.items()}


def _read_all(program: Path, members: list[Member], native: bool = False) -> dict[int, str]:
    """Read the stacks of all; return why some could not be read."""
    why = {}

    def one(member: Member) -> None:
        member.threads = None
        try:
            member.threads = read(program, member.pid, native)
        except NoRightError:
            raise
        except ValueError as error:
            why[member.pid] = str(error)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(one, members))
    return why


def _activities(process: Member) -> movement.Activities:
    return {each.number: activity(process.pid, each.number) for each in process.threads or ()}


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _job(job: list[Member], members: dict[int, Member], states: dict) -> dict:
    numbered = numbers.numbers(job)
    rows = [_row(one, numbered.get(one.pid), members, states[one.pid]) for one in job]
    return {
        "ranks": sorted(rows, key=lambda row: (row["rank"] is None, row["rank"], row["pid"])),
        "ended": sorted(numbers.missing(job, numbered, members.values())),
        "world_size": numbers.world_size(job),
    }


def _row(
    process: Member, number: int | None, members: dict[int, Member], state: tuple[str, str]
) -> dict:
    row: dict[str, Any] = {"rank": number, "pid": process.pid, "machine": socket.gethostname()}
    row |= dict(zip(("state", "why"), state, strict=True))
    if not process.threads:
        return row
    thread, here, others = stands(process.threads, process.pid)
    row |= _plain(here, process.pid) | {
        "thread": "" if thread.number == process.pid else thread.name
    }
    also = [(f"its thread {each.name}", each) for each in others]
    also = [("its main thread" if each.number == process.pid else who, each) for who, each in also]
    if here.loads:  # then a worker holds it up
        workers = [each for each in members.values() if each.parent == process.pid and each.helps]
        also += [
            (f"its worker, process {each.pid}", thread)
            for each in workers
            for thread in each.threads or ()
            if thread.number == each.pid
        ]
    if process.is_shallow and not here.inside:
        row["inside"] = None  # it may be, in C++
    row["also"] = [{"who": who, **_plain(_place(each), process.pid)} for who, each in also]
    return row


def _place(thread: ThreadStack) -> StackPlace:
    return stands([thread], thread.number)[1]


def _plain(place: StackPlace, pid: int) -> dict:
    text = _source(place, pid)
    return {
        "source": f": {text}" if text else "",
        "call": place.call,
        "inside": place.inside,
        "file": place.file,
        "line": place.line,
        "function": place.function,
        "way": [list(one) for one in place.way],
        "variables": place.variables,
    }


def _source(place: StackPlace, pid: int) -> str:
    """The line of the program, as far as its user could read it, too."""
    root, folder = Path(f"/proc/{pid}/root"), Path(f"/proc/{pid}/cwd")
    path = root / place.file.lstrip("/") if place.file.startswith("/") else folder / place.file
    try:
        owner = os.stat(f"/proc/{pid}").st_uid
        with open(path, errors="replace") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or not (
                status.st_mode & stat.S_IROTH or status.st_uid == owner
            ):
                return ""
            return next(itertools.islice(file, place.line - 1, None), "").strip()[:60]
    except (OSError, ValueError):
        return ""


def _above(top: Member, rank_processes: list[Member]) -> int | None:
    """The process above one that is a rank itself: it may have more ranks."""
    return (
        top.parent
        if top in rank_processes and len(rank_processes) == 1 and top.parent > 1
        else None
    )


def _called(members: dict[int, Member], pid: int) -> str:
    command = _short(members[pid].command) if pid in members else ""
    return f"process {pid} ({command[:60]})" if command else f"process {pid}"


def _short(command: list[str]) -> str:
    """A command line, without the folders of the program and of what it runs."""
    return shlex.join([*map(os.path.basename, command[:2]), *command[2:]])


def _no_ranks(members: dict[int, Member], pid: int, python: list[Member]) -> str:
    lines = [f"no rank of torch.distributed below {_called(members, pid)}. Python runs there in"]
    for one in python[:8]:
        main = next((each for each in one.threads or () if each.number == one.pid), None)
        here = _place(main) if main else None
        where = f"  {here.file}:{here.line} in {here.function}" if here else ""
        lines.append(f"  process {one.pid} ({_short(one.command)[:60]}){where}")
    return "\n".join(lines)


def _no_right(pid: int) -> str:
    again = f"{shlex.quote(sys.executable)} -I -m collectives diagnose --pid {pid}"
    if os.geteuid() == 0:
        return (
            f"root may not read process {pid} here: a container needs the capability SYS_PTRACE "
            "(docker run --cap-add SYS_PTRACE; in Kubernetes "
            'securityContext: {capabilities: {add: ["SYS_PTRACE"]}}), or ask on its host.'
        )
    return f"the system lets only root read process {pid}: sudo {again}"
