"""Many programs for exercises, one after another in one world: each has a process group of its own.

A rank whose program fails destroys its group. So no other rank waits for it, and the next program
starts at once. What a learner is told, `examine` knows: here a fault is only found.
"""

import contextlib
import datetime
import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch.distributed as dist

from collectives import LaunchError, launch
from collectives.course.practice import process_group, registry
from collectives.course.practice.result import outcome


class Program(NamedTuple):
    """An answer to an exercise, as source text. A call that takes longer than `limit` s hangs."""

    exercise: str
    text: str
    limit: float


class Fault(NamedTuple):
    """The first fault of a program: in which case, from 0, and what is wrong."""

    case: int
    label: str
    problem: str


def faults(programs: list[Program], n: int, folder: Path) -> list[Fault | None]:
    """What is wrong with each program in a world of `n` ranks; None if nothing is."""
    found: list[Fault | None] = []
    while len(found) < len(programs):  # a program that ends its process ends the world
        rest = programs[len(found) :]
        for file in folder.glob("*"):
            file.unlink()
        died = False
        try:
            launch(
                _try_in_turn, n, args=(rest, str(folder)), backend="gloo", device="cpu", timeout=120
            )
        except LaunchError as error:
            if error.kind != "died":
                raise
            died = True
        by_rank = [_read(folder / str(rank)) for rank in range(n)]
        done = max(map(len, by_rank)) if not died else min(map(len, by_rank))
        for number in range(done):
            found.append(min((notes[number] for notes in by_rank if notes[number]), default=None))
        if died:
            found.append(Fault(0, "", "a rank died"))
    return found


def _read(file: Path) -> list[Fault | None]:
    lines = file.read_text().splitlines() if file.exists() else []
    return [Fault(*fault) if fault else None for fault in map(json.loads, lines)]


def _try_in_turn(rank: int, n: int, device: object, programs: list[Program], folder: str) -> None:
    store = dist.distributed_c10d._get_default_store()
    dist.barrier()  # all are connected before one of them leaves
    with open(Path(folder, str(rank)), "w", buffering=1) as notes:
        for number, program in enumerate(programs):
            dist.destroy_process_group()
            store.set(f"{number} {rank}", "")
            store.wait([f"{number} {peer}" for peer in range(n)], datetime.timedelta(minutes=1))
            own, limit = dist.PrefixStore(str(number), store), datetime.timedelta(0, program.limit)
            dist.init_process_group("gloo", store=own, rank=rank, world_size=n, timeout=limit)
            own.set_timeout(limit)  # that of `store`, too
            dist.distributed_c10d.default_pg_timeout = limit  # that of groups that it makes
            dist.barrier()
            with _restored():
                fault = _fault(rank, n, program)
            if fault is None:
                with contextlib.suppress(RuntimeError):  # of a rank that failed
                    dist.barrier()
            notes.write(json.dumps(fault) + "\n")


def _fault(rank: int, n: int, program: Program) -> Fault | None:
    wanted, number, label = registry.find(program.exercise), -1, ""
    written: dict = {"__name__": wanted.name}
    process_group.SENT.__init__()  # type: ignore[misc]
    try:
        exec(compile(program.text, wanted.name, "exec"), written)
        function = written[wanted.function]
        names, sent = (
            list(inspect.signature(function).parameters),
            process_group.watch(wanted, wanted.name),
        )
        for number, case in enumerate(wanted.cases(rank, n)):
            label = case.label
            problem = outcome(function, names, case, sent)["problem"]
            if problem:
                return Fault(number, label, problem)
    except Exception as error:
        return Fault(number, label, f"raised {type(error).__name__}: {error}")
    return None


@contextlib.contextmanager
def _restored() -> Iterator[None]:
    """`watch` replaces methods for good: a rank tries one exercise."""
    # subtle: cloudpickle would take `torch.ops` along by value, and cannot.
    operators = sys.modules["torch.ops"]
    watched = (dist.ProcessGroup, dist.Backend, dist.ProcessGroupGloo, dist.Work, operators)
    before = [dict(vars(place)) for place in watched]
    try:
        yield
    finally:
        for place, own in zip(watched, before, strict=True):
            for name, value in list(vars(place).items()):
                if name not in own:
                    delattr(place, name)
                elif own[name] is not value:
                    setattr(place, name, own[name])
