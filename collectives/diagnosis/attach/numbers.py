"""Which rank is which: the numbers of a job's processes, and which numbers are missing. Pure."""

import re
from collections.abc import Callable, Iterable

from collectives.diagnosis.attach.family import NUMBERS, Member
from collectives.recording import launchers
from collectives.recording.stack import is_library

_NAMED = re.compile(r"(global_|world_|process_|proc_|local_)?(rank|process_index|rank_id)")
_OPTION = re.compile(r"--?(global[-_]|local[-_])?rank(=(?P<number>\d+))?")
_SIZES = ("world_size", "world", "nprocs", "num_processes", "n_ranks")


def numbers(ranks: list[Member]) -> dict[int, int]:
    """The number of each process, by its pid; empty if nothing tells all of them apart.

    In this order: what the launcher has put into the environment, an option --rank, the index of
    mp.spawn, an argument called rank, and last an argument that counts the processes from 0.
    """
    sources: list[Callable[[Member], int | None]] = [
        *map(_from_environ, NUMBERS),
        _from_option,
        _from_spawn,
        _from_variable,
    ]
    for source in sources:
        values = {process.pid: source(process) for process in ranks}
        without = [pid for pid, value in values.items() if value is None]
        if len(without) == 1 and len(ranks) > 1 and 0 not in values.values():
            values[without[0]] = 0  # the rank that started the others
        known = {pid: value for pid, value in values.items() if value is not None}
        if len(known) == len(ranks) == len(set(known.values())):
            return known
    rows = [process.command for process in ranks], [_arguments(process) for process in ranks]
    return _counted(rows[0], ranks) or _counted(rows[1], ranks)


def missing(job: list[Member], numbered: dict[int, int], members: Iterable[Member]) -> set[int]:
    """The numbers that this machine should have, and that no process has."""
    expected: set[int] = set()
    for one in job:
        for rank, _, local, local_size in (launchers.TORCHRUN, *launchers.MPI):
            values = [one.environ.get(name, "") for name in (rank, local, local_size)]
            if all(value.isdigit() for value in values) and numbered.get(one.pid) == int(values[0]):
                first = int(values[0]) - int(values[1])
                expected |= set(range(first, first + int(values[2])))
                break
    if not expected and numbered:
        members, parents = list(members), {one.parent for one in job}
        starters = [one for one in members if one.pid in parents]
        spawned = [size for one in starters for size in _variables(one, ("nprocs",), "spawn.py")]
        zombies = [one for one in members if one.is_zombie and one.parent in parents]
        expected = set(range(max(*spawned, max(numbered.values()) + 1, len(job) + len(zombies))))
    return expected - set(numbered.values()) if numbered else set()


def world_size(job: list[Member]) -> int | None:
    """How many ranks the job has on all machines, where that can be seen."""
    for one in job:
        for _, size, *_ in launchers.ALL:
            if one.environ.get(size, "").isdigit():
                return int(one.environ[size])
    seen = [size for one in job for size in _variables(one, _SIZES, "")]
    return max(seen, default=None)


def _from_environ(name: str) -> Callable[[Member], int | None]:
    def source(process: Member) -> int | None:
        value = process.environ.get(name, "")
        return int(value) if value.isdigit() else None

    return source


def _from_option(process: Member) -> int | None:
    for word, following in zip(process.command, [*process.command[1:], ""], strict=True):
        if found := _OPTION.fullmatch(word):
            number = found["number"] or following
            return int(number) if number.isdigit() else None
    return None


def _from_spawn(process: Member) -> int | None:
    found = _variables(process, ("i",), "torch/multiprocessing/spawn.py")
    return found[0] if found else None


def _from_variable(process: Member) -> int | None:
    """An argument that is called rank: of the outermost function that has one."""
    for frame in reversed(_frames(process)):
        if is_library(frame.file) and not frame.file.endswith("distributed_c10d.py"):
            continue
        for name, text in {**frame.given, **frame.locals}.items():
            if _NAMED.fullmatch(name) and text.isdigit():
                return int(text)
    return None


def _variables(process: Member, names: Iterable[str], file: str) -> list[int]:
    return [
        int(text)
        for frame in reversed(_frames(process))
        if frame.file.endswith(file)
        and (file or not is_library(frame.file) or "c10d" in frame.file)
        for name, text in {**frame.given, **frame.locals}.items()
        if name in names and text.isdigit()
    ]


def _frames(process: Member) -> list:
    main = next((each for each in process.threads or () if each.number == process.pid), None)
    return [frame for frame in (main.frames if main else ()) if not frame.native]


def _arguments(process: Member) -> list[str]:
    """The arguments of the program's outermost function that has any."""
    own = [
        frame for frame in reversed(_frames(process)) if not is_library(frame.file) and frame.given
    ]
    return list(own[0].given.values()) if own else []


def _counted(rows: list[list[str]], ranks: list[Member]) -> dict[int, int]:
    """The first place at which all rows differ and hold the numbers from 0, with few left out."""
    for values in zip(*rows, strict=False):
        if all(value.isdigit() for value in values):
            known = list(map(int, values))
            if len(set(known)) == len(known) > 1 and max(known) < 2 * len(known):
                return {one.pid: number for one, number in zip(ranks, known, strict=True)}
    return {}
