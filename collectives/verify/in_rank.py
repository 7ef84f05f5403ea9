"""What runs in each rank: one question after the other, with a note of each in a file.

The notes outlive the rank. So the parent knows what was under way when a world hung or died.
"""

import contextlib
import faulthandler
import functools
import json
import os
import sys
import sysconfig
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from collectives.semantics.probe import Bug, Refused, Silence
from collectives.verify.question import Question, Stated

# What stands in the notes where a question has its number: the rank leaves the world.
LEAVING = 10**9
# Leaving the world may take so long, in seconds.
_LEAVE = 20.0

_STDLIB = sysconfig.get_path("stdlib") + os.sep
_OTHERS = tuple(f"{Path(file).parent}{os.sep}" for file in (torch.__file__, Path(__file__).parent))
_LIBRARIES = (
    *(f"{os.sep}{name}{os.sep}" for name in ("numpy", "cloudpickle")),
    f"{os.sep}typing_extensions.py",
)

# What torch calls when it makes a group, which is no call of a program.
_OF_GROUPS = (
    *("__init__", "setGroupName", "getGroupName", "setGroupDesc", "getGroupDesc", "_get_backend"),
    *("getBackendName", "rank", "size", "<module>", "<lambda>"),
)

# faulthandler writes into these files until the process ends.
_stacks: list[Any] = []


def is_authors(file: str) -> bool:
    """Whether a file may be the backend's: it is not Python's, torch's or ours."""
    if file.startswith(("<", *_OTHERS)) or any(name in file for name in _LIBRARIES):
        return False
    return "site-packages" in file or not file.startswith(_STDLIB)


def ask(
    rank: int,
    world_size: int,
    device: torch.device,
    questions: list[Question],
    folder: str,
    traces: bool,
    leaves: bool,
    silence: Silence,
) -> None:
    """Ask all of them. With `traces`, note which of the author's functions each one enters.

    Without `leaves`, the ranks end without destroying the group, which hangs.
    """
    torch.set_num_threads(1)
    _stacks.append(open(f"{folder}/{rank}.stack", "a"))  # noqa: SIM115  it stays open
    watch = functools.partial(faulthandler.dump_traceback_later, exit=True, file=_stacks[-1])
    worked: Question | None = None
    with open(f"{folder}/{rank}.notes", "a", buffering=1) as notes:
        write = functools.partial(_write, notes)
        for number, question in enumerate(questions):
            watch(question.limit)
            write(number, "begun")
            state, detail, place = _answer(rank, world_size, device, question, traces)
            write(number, state, detail, place)
            if state == "works":
                worked = question
            elif worked and state == "refuses" and not traces:
                # A call that was refused may leave the group in a state in which nothing works.
                watch(question.limit)
                if _answer(rank, world_size, device, worked, False)[0] != "works":
                    write(number, "poisoned")
                    break
        watch(_LEAVE)
        write(LEAVING, "begun")
    if not leaves:
        together(c10d._get_default_store(), "all have answered", world_size)
        os._exit(0)


def together(store: Any, key: str, size: int) -> None:
    """Wait for all: else one could leave while another one still connects to it."""
    if store.add(key, 1) == size:
        store.set(f"{key} all", "")
    store.wait([f"{key} all"])


def _write(notes: Any, number: int, state: str, detail: str = "", place: str = "") -> None:
    notes.write(json.dumps([number, state, detail, place, time.monotonic()]) + "\n")


def _answer(
    rank: int, world_size: int, device: torch.device, question: Question, traces: bool
) -> tuple[str, str, str]:
    entered: list[str] = []
    try:
        with _tracing(entered) if traces else contextlib.nullcontext():
            result = question.run(rank, world_size, device)
    except Bug as error:
        return (
            "crashes",
            str(error),
            _first(entered, question) or str(error).rpartition("(")[2].rstrip(")"),
        )
    except Refused as error:
        return "refuses", str(error), ""
    except Exception as error:
        return "refuses", f"{type(error).__name__}: {error}".splitlines()[0], _where(error)
    if isinstance(result, Stated):
        return "stated", result.text, ""
    return ("wrong", str(result), _first(entered, question)) if result else ("works", "", "")


def _first(entered: list[str], question: Question) -> str:
    """The first of the author's functions; a barrier only synchronizes what others ask about."""
    asked = [one for one in entered if question.call == "barrier" or not one.endswith(" barrier")]
    return (asked or entered or [""])[0]


def _where(error: Exception) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_authors(frame[0])]
    return place(frames[-1].filename, frames[-1].lineno or 0, frames[-1].name) if frames else ""


def place(file: str, line: int, function: str) -> str:
    return f"{Path(file).name}, line {line} in {function}"


@contextlib.contextmanager
def _tracing(entered: list[str]) -> Any:
    """Note the author's functions that this process enters, in any thread."""

    def note(frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and is_authors(code.co_filename) and code.co_name not in _OF_GROUPS:
            entered.append(place(code.co_filename, code.co_firstlineno, code.co_name))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def group_facts(
    rank: int, world_size: int, device: torch.device, members: tuple[int, ...]
) -> str | None:
    """Where the group of these ranks says something else of itself than torch has passed to it."""
    group = dist.group.WORLD
    if len(members) < world_size:
        group = dist.new_group(list(members))
    if rank not in members or group is None:
        return None
    parts: list[tuple[str, Any]] = [("the group", group)]
    with contextlib.suppress(Exception):  # a group in Python has no backend below it
        parts.append(("its backend", group._get_backend(device)))
    facts: list[tuple[str, Any, Any]] = [
        (f"{method}() of {what}", getattr(part, method)(), should)
        for what, part in parts
        for method, should in (("rank", members.index(rank)), ("size", len(members)))
    ]
    with contextlib.suppress(RuntimeError):  # it has no name: the calls that need one say so
        facts.append(("the name of the group", group.group_name, c10d._world.pg_names[group]))
    kinds = {kind.type for kind in group._device_types}
    if kinds and device.type not in kinds:
        facts.append(("the device of the group", ", ".join(sorted(kinds)), device.type))
    wrong = [f"{what} is {got}, torch passed {want}" for what, got, want in facts if got != want]
    return f"rank {rank}/{world_size}: {'; '.join(wrong)}" if wrong else None
