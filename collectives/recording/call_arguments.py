"""What a call to torch.distributed asks for, read from its arguments: group, root or peer, reduction, shapes, dtypes, splits."""

import contextlib
import functools
import inspect
import operator
from dataclasses import replace

import torch
from torch.distributed import distributed_c10d as c10d

from .call import (
    GROUPS,
    POINT_TO_POINT,
    WORLD,
    What,
    label,
    place_of,
    sequence,
)

# Where no root is named, it is rank 0.
_ROOT_IS_0 = ("gather", "scatter", "gather_object", "scatter_object_list")

# Parameters that are numbers, or lists of them.
_NUMBERS = {
    "src",
    "dst",
    "group_src",
    "group_dst",
    "tag",
    "output_split_sizes",
    "input_split_sizes",
    "ranks",
    "split_ranks",
}


class Reader:
    """Reads calls one after another, and counts each group's collectives.

    A line of a program mostly asks for the same again: then the same What is returned, found by what is quickly had.
    """

    def __init__(self):
        self.groups: dict[str, tuple[tuple[int, ...], float | None]] = {}
        self.worlds = 0  # how many this process has joined, one after another, in the same place
        self.place = (-1, -1)
        self.counters: dict[tuple, list[int]] = {}
        self.known: dict[tuple, tuple[What, list[int] | None]] = {}  # with what counts it
        self.waits: dict[tuple, What] = {}

    def read(
        self, name: str, given: dict, caller: tuple[str, int, str]
    ) -> tuple[int | None, What] | None:
        """The call's seq and what it asks for; None where this rank is not a member of the group, and the call does nothing."""
        key = None
        for word in _NUMBERS.intersection(given):
            given[word] = _plain(given[word])
        if name in GROUPS:
            self.groups.clear()
            self.known.clear()
        elif "object" not in name:  # these are given anything
            key = (name, caller, *given, *map(_signature, given.values()))
        known = self.known.get(key)
        if known is None:
            what = self._read(name, given, caller)
            if what is None:
                return None
            known = what, self._counter(what)
            if key is not None:
                _keep(self.known, key, known)
        what, counter = known
        if counter is None:
            return None, what
        seq = counter[0]
        counter[0] = seq + 1
        return seq, what

    def _counter(self, what: What) -> list[int] | None:
        if what.name in POINT_TO_POINT or what.name == "destroy_process_group":
            return None
        return self.counters.setdefault(sequence(what.group, what.name), [0])

    def waiting(self, what: What, caller: tuple[str, int, str]) -> What:
        """What a wait for the Work of this call asks for."""
        key = what, caller
        found = self.waits.get(key)
        if found is None:
            file, line, function = caller
            found = replace(
                what,
                name="wait",
                awaited=what.name,
                is_async=False,
                file=file,
                line=line,
                function=function,
            )
            _keep(self.waits, key, found)
        return found

    def _read(self, name: str, given: dict, caller: tuple[str, int, str]) -> What | None:
        given = _defaults(name) | given
        if name in GROUPS:
            (group, members, ranks), timeout, served = (
                self._group_made(name, given),
                None,
                ("", "", False),
            )
        else:
            handle = given.get("group")
            if handle is c10d.GroupMember.NON_GROUP_MEMBER:
                return None
            (group, members, timeout), ranks, served = (
                self._group(handle),
                None,
                _served(handle, given),
            )
        return What(
            name,
            group,
            members,
            None,
            _peer(name, given, members),
            _op_name(given["op"]) if "op" in given else None,
            given.get("tag"),
            _objects(name, given) if "object" in name else _tensors(given),
            _splits(given) if name == "all_to_all_single" else None,
            ranks,
            bool(given.get("async_op")) or name in ("isend", "irecv"),
            given["timeout"].total_seconds() if given.get("timeout") else timeout,
            *served,
            *caller,
        )

    def take_back(self, seq: int | None, what: What) -> None:
        """The call was refused, so that the next one takes its place."""
        counter = self._counter(what)
        if seq is not None and counter[0] == seq + 1:
            counter[0] = seq

    def _group(self, handle) -> tuple[str, tuple[int, ...], float | None]:
        """Its name, its members, and its time limit in seconds."""
        world = c10d.GroupMember.WORLD
        handle = world if handle is None else handle
        if handle is None:  # there is no group yet: the call will say so
            return WORLD, (), None
        name = handle.group_name
        if name not in self.groups:
            self.groups[name] = (
                tuple(map(int, c10d.get_process_group_ranks(handle))),
                _time_limit(handle),
            )
        return (WORLD if handle is world else label(name, self.worlds)), *self.groups[name]

    def _group_made(self, name: str, given: dict) -> tuple[str, tuple[int, ...], tuple | None]:
        """Whom it concerns, and who is to be in the new groups."""
        if name == "init_process_group":
            if self.place != (place := place_of(given)):  # other ranks are with it from now on
                self.place, self.worlds = place, 0
                self.counters.clear()
            self.worlds += 1
            return WORLD, tuple(range(place[1])), None
        group, members, _ = self._group(given.get("group") or given.get("parent_pg"))
        if name == "split_group":
            return group, members, tuple(tuple(ranks) for ranks in given.get("split_ranks") or ())
        if name != "new_group":
            return group, members, None
        ranks = given.get("ranks")
        ranks = (
            members
            if ranks is None
            else tuple(sorted(ranks) if given.get("sort_ranks", True) else ranks)
        )
        if given.get("use_local_synchronization"):
            return f"the new group of {', '.join(map(str, ranks))}", ranks, (ranks,)
        return group, members, (ranks,)


@functools.cache
def _defaults(name: str) -> dict:
    parameters = inspect.signature(getattr(c10d, name)).parameters
    return {word: parameters[word].default for word in ("op", "tag") if word in parameters}


def _plain(value):
    """Numbers of numpy, and tensors of one, which torch takes as well, as Python's own."""
    if value is None or type(value) is int:
        return value
    try:
        return operator.index(value)
    except TypeError:  # it is a list, or an array
        return [_plain(one) for one in value]


def _keep(known: dict, key: tuple, value) -> None:
    if len(known) >= 4096:  # a program whose calls never repeat
        known.clear()
    known[key] = value


def _signature(value):
    """Two arguments with the same one ask for the same."""
    if isinstance(value, torch.Tensor):
        try:
            return value.dtype, value.shape, value.is_contiguous()
        except RuntimeError:  # a sparse tensor of some kind
            return value.dtype, value.shape
    if isinstance(value, list | tuple):
        return tuple(map(_signature, value))
    return value


def _served(handle, given: dict) -> tuple[str, str, bool]:
    """The backend and the device of the tensors, where there are some and torch says so; and whether one of them has gaps."""
    alone = [value for value in given.values() if isinstance(value, torch.Tensor)]
    listed = [
        one
        for value in given.values()
        if isinstance(value, list | tuple)
        for one in value
        if isinstance(one, torch.Tensor)
    ]
    if not alone + listed:
        return "", "", False
    device = (alone + listed)[0].device
    gaps = any(map(_has_gaps, alone))  # torch copies those of a list
    with contextlib.suppress(Exception):  # a backend of another kind may not know its name
        return (handle or c10d.GroupMember.WORLD)._get_backend(device).name(), device.type, gaps
    return "", device.type, gaps


def _has_gaps(tensor: torch.Tensor) -> bool:
    """Whether its elements, in whatever order, do not fill the memory from the first to the last: a column of a matrix, say."""
    # Where torch makes a tensor like another, it keeps the strides of one without gaps, transposed or not, and of no other.
    return (
        tensor.layout is torch.strided
        and torch.empty_like(tensor, device="meta").stride() != tensor.stride()
    )


def _time_limit(group) -> float | None:
    with contextlib.suppress(Exception):  # a backend of another kind may have none
        return min(
            group._get_backend(device).options._timeout.total_seconds()
            for device in group._device_types
        )
    return None


def _objects(name: str, given: dict) -> tuple[str, ...]:
    """How many, where the other ranks must have as many; not what they are, for they may be tensors, of any kind on each rank."""
    return (
        (f"object[{len(given['object_list'])}]",)
        if name.endswith("object_list") and "object_list" in given
        else ()
    )


def _tensors(given: dict) -> tuple[str, ...]:
    found: list[str] = []
    for value in given.values():
        if isinstance(value, torch.Tensor):
            found.append(tell(value))
        elif isinstance(value, list | tuple):
            _tell_all(value, found)
    return tuple(found)


def _tell_all(values: list | tuple, found: list[str]) -> None:
    """The tensors of a list (of lists); of objects, splits and ranks nothing."""
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(tell(value))
        elif isinstance(value, list | tuple):
            _tell_all(value, found)
        else:
            return


_told: dict[tuple, str] = {}


def tell(tensor: torch.Tensor) -> str:
    """As in float32[4, 2]."""
    key = tensor.dtype, tensor.shape
    text = _told.get(key)
    if text is None:
        if len(_told) > 10_000:  # a program whose shapes never repeat
            _told.clear()
        text = _told[key] = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
    return text


def _peer(name: str, given: dict, members: tuple[int, ...]) -> int | None:
    if name == "init_process_group":
        return given["rank"] if given.get("rank", -1) >= 0 else None
    for word in ("src", "dst"):
        if given.get(word) is not None:
            return given[word]
        if (number := given.get(f"group_{word}")) is not None:
            return members[number]
    return 0 if name in _ROOT_IS_0 else None


def _splits(given: dict) -> tuple:
    both = (given.get(word) for word in ("output_split_sizes", "input_split_sizes"))
    return tuple(tuple(splits) if splits else None for splits in both)


def _op_name(op) -> str:
    name = getattr(op, "name", None)  # of a ReduceOp with a factor there is none
    return name or next(
        (name for name, known in c10d.ReduceOp.RedOpType.__members__.items() if op == known),
        str(op),
    )
