"""Many functions, one after another in one world: each has a process group of its own.

A rank whose function fails destroys its group. So no other rank waits for it, and the next one
starts at once. `faults` tries answers to exercises so; what a learner is told of each is said by
the checker, from the same notes of each rank. Only a hang and a death look otherwise there, where
the world is the program's own.
"""

import contextlib
import datetime
import functools
import inspect
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch.distributed as dist

from collectives import LaunchError, launch
from collectives.course.practice import checker, process_group, registry
from collectives.course.practice.board import Board
from collectives.course.practice.result import outcome
from collectives.course.practice.run_cases import hash_of, own_frames
from collectives.course.practice.world import Ended
from collectives.recording.ending import Ending


class Try(NamedTuple):
    """`function(rank, n)` says whether it fails on this rank, and what to note of it.

    A call that takes longer than `limit` s hangs.
    """

    function: Callable[[int, int], tuple[bool, Any]]
    limit: float


def in_turn(tries: list[Try], n: int, folder: Path) -> list[tuple | None]:
    """What the ranks of a world of `n` note of each, by rank; None if one died of it."""
    recorded: list[tuple | None] = []
    while len(recorded) < len(tries):  # a function that ends its process ends the world
        rest = tries[len(recorded) :]
        for file in folder.glob("*"):
            file.unlink()
        died = False
        try:
            launch(
                _try_in_turn,
                n,
                args=(rest, str(folder)),
                backend="gloo",
                device="cpu",
                timeout=600,
                diagnose=False,
            )
        except LaunchError as error:
            if error.kind != "died":
                raise
            died = True
        recorded += zip(*(_read(folder / str(rank)) for rank in range(n)), strict=not died)
        if died:
            recorded.append(None)
    return recorded


def _read(file: Path) -> list:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def _try_in_turn(rank: int, n: int, device: object, tries: list[Try], folder: str) -> None:
    store = dist.distributed_c10d._get_default_store()
    dist.barrier()  # all are connected before one of them leaves
    with open(Path(folder, str(rank)), "w", buffering=1) as notes:
        for number, one in enumerate(tries):
            dist.destroy_process_group()
            store.set(f"{number} {rank}", "")
            store.wait([f"{number} {peer}" for peer in range(n)], datetime.timedelta(minutes=1))
            own, limit = dist.PrefixStore(str(number), store), datetime.timedelta(0, one.limit)
            dist.init_process_group("gloo", store=own, rank=rank, world_size=n, timeout=limit)
            own.set_timeout(limit)  # that of `store`, too
            dist.distributed_c10d.default_pg_timeout = limit  # that of groups that it makes
            dist.barrier()
            failed, recorded = one.function(rank, n)
            if not failed:
                with contextlib.suppress(RuntimeError):  # of a rank that failed
                    dist.barrier()
            notes.write(json.dumps(recorded) + "\n")


class Program(NamedTuple):
    """An answer to an exercise, as source text."""

    exercise: str
    text: str
    limit: float


class Fault(NamedTuple):
    """The first fault of a program: in which case, from 0, and what the learner is told."""

    case: int
    says: str


# By number of the case, and -1 before the first: what a rank notes of it, as `run_cases` does.
Notes = dict[int, dict[str, Any]]


def faults(programs: list[Program], n: int, folder: Path) -> list[Fault | None]:
    """What is wrong with each program in a world of `n` ranks; None if nothing is."""
    tries = [Try(functools.partial(_tried, program), program.limit) for program in programs]
    return [
        Fault(0, "a rank died") if recorded is None else _fault(list(map(dict, recorded)))
        for recorded in in_turn(tries, n, folder)
    ]


# Of a rank that waits for one that hangs, or loses one that has destroyed its group.
_OF_ANOTHER = re.compile("gloo/transport|timed out|timeout", re.IGNORECASE)


def _fault(notes: list[Notes]) -> Fault | None:
    wrong = [case for of_rank in notes for case, note in of_rank.items() if note.get("problem")]
    raised = [
        (case, rank, note["raised"]["says"])
        for rank, of_rank in enumerate(notes)
        for case, note in of_rank.items()
        if "raised" in note
    ]
    own = [one for one in raised if not _OF_ANOTHER.search(one[2])]
    first = min(own, default=None)
    error = None
    if first and first[0] <= min(wrong, default=first[0]):
        error = LaunchError("", rank=first[1], kind=Ending.RAISED)
    elif raised and not wrong:
        case, rank, _ = min(raised)
        begun = notes[rank][case].get("begins", "")
        return Fault(case, f"{len(notes)} ranks, {begun}: it hangs")
    board = _no_board(len(notes))
    verdict = checker._failure(Ended(error, first[0] if first else 0, notes, board), "", [])
    if verdict is None:
        return None
    return Fault(min([*wrong, *(case for case, *_ in own)]), f"{verdict.case}: {verdict.says}")


@functools.cache
def _no_board(ranks: int) -> Board:
    """Of a world in which nobody stands anywhere."""
    with tempfile.TemporaryDirectory() as folder:
        return Board(Path(folder, "board"), ranks)


def _tried(program: Program, rank: int, n: int) -> tuple[bool, list]:
    """Up to the first case that is wrong on this rank."""
    wanted, number = registry.find(program.exercise), -1
    written: dict = {"__name__": wanted.name, "hash": hash_of(rank)}
    notes: Notes = {}
    with _restored():
        process_group.SENT.__init__()  # type: ignore[misc]
        try:
            exec(compile(program.text, wanted.name, "exec"), written)
            function = written[wanted.function]
            names = list(inspect.signature(function).parameters)
            sent = process_group.watch(wanted, wanted.name)
            for number, case in enumerate(wanted.cases(rank, n)):
                notes[number] = {"begins": case.label}
                notes[number]["problem"] = outcome(function, names, case, sent, lambda: True)[
                    "problem"
                ]
                if notes[number]["problem"]:
                    break
        except Exception as error:
            notes.setdefault(number, {})["raised"] = own_frames(error, wanted.name)
    failed = any(note.get("problem") or "raised" in note for note in notes.values())
    return failed, list(notes.items())


@contextlib.contextmanager
def _restored() -> Iterator[None]:
    """`watch` replaces methods for good: a rank tries one exercise."""
    # subtle: cloudpickle would take `torch.ops` along by value, and cannot.
    operators = sys.modules["torch.ops"]
    watched = (dist.ProcessGroup, dist.Backend, dist.ProcessGroupGloo, dist.Work, operators)
    before = [dict(vars(place)) for place in watched]
    functions = {
        name: getattr(dist, name)
        for name in ("new_group", *process_group.MADE_OF_CALLS)
        if hasattr(dist, name)
    }
    try:
        yield
    finally:
        for name, function in functions.items():
            setattr(dist, name, function)
            setattr(dist.distributed_c10d, name, function)
        for place, own in zip(watched, before, strict=True):
            for name, value in list(vars(place).items()):
                if name not in own:
                    delattr(place, name)
                elif own[name] is not value:
                    setattr(place, name, own[name])
