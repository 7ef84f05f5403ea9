"""What a call to torch.distributed asks for, read from its arguments: group, root or peer, reduction, shapes, dtypes, splits."""

import contextlib

import torch
from torch.distributed import distributed_c10d as c10d

from collectives.recording.call import GROUPS, POINT_TO_POINT, WORLD, What, label, place_of, sequence

# Where no root is named, it is rank 0.
_ROOT_IS_0 = ("gather", "scatter", "gather_object", "scatter_object_list")


class Reader:
    """Reads calls one after another, and counts each group's collectives."""

    def __init__(self):
        self.groups: dict[str, tuple[tuple[int, ...], float | None]] = {}
        self.worlds = 0  # how many this process has joined, one after another, in the same place
        self.place = (-1, -1)
        self.counts: dict[tuple, int] = {}

    def read(self, name: str, given: dict, caller: tuple[str, int, str]) -> tuple[int | None, What] | None:
        """The call's seq and what it asks for; None where this rank is not a member of the group, and the call does nothing."""
        if name in GROUPS:
            (group, members, ranks), timeout = self._group_made(name, given), None
        else:
            handle = given.get("group")
            if handle is c10d.GroupMember.NON_GROUP_MEMBER:
                return None
            (group, members, timeout), ranks = self._group(handle), None
        what = What(
            name,
            group,
            members,
            None,
            _peer(name, given, members),
            _op_name(given["op"]) if "op" in given else None,
            given.get("tag"),
            () if "object" in name else _tensors(given),  # objects may be tensors, of any kind on each rank
            _splits(given) if name == "all_to_all_single" else None,
            ranks,
            bool(given.get("async_op")) or name in ("isend", "irecv"),
            given["timeout"].total_seconds() if given.get("timeout") else timeout,
            *caller,
        )
        if name in POINT_TO_POINT or name == "destroy_process_group":
            return None, what
        key = sequence(group, name)
        seq = self.counts.get(key, 0)
        self.counts[key] = seq + 1
        return seq, what

    def take_back(self, seq: int | None, what: What) -> None:
        """The call was refused, so that the next one takes its place."""
        key = sequence(what.group, what.name)
        if seq is not None and self.counts.get(key) == seq + 1:
            self.counts[key] = seq

    def _group(self, handle) -> tuple[str, tuple[int, ...], float | None]:
        """Its name, its members, and its time limit in seconds."""
        world = c10d.GroupMember.WORLD
        handle = world if handle is None else handle
        if handle is None:  # there is no group yet: the call will say so
            return WORLD, (), None
        name = handle.group_name
        if name not in self.groups:
            self.groups[name] = tuple(c10d.get_process_group_ranks(handle)), _time_limit(handle)
        return (WORLD if handle is world else label(name, self.worlds)), *self.groups[name]

    def _group_made(self, name: str, given: dict) -> tuple[str, tuple[int, ...], tuple | None]:
        """Whom it concerns, and who is to be in the new groups."""
        if name in ("init_process_group", "destroy_process_group"):
            self.groups.clear()
        if name == "init_process_group":
            if self.place != (place := place_of(given)):  # other ranks are with it from now on
                self.place, self.worlds = place, 0
                self.counts.clear()
            self.worlds += 1
            return WORLD, tuple(range(place[1])), None
        group, members, _ = self._group(given.get("group") or given.get("parent_pg"))
        if name == "split_group":
            return group, members, tuple(tuple(ranks) for ranks in given.get("split_ranks") or ())
        if name != "new_group":
            return group, members, None
        ranks = given.get("ranks")
        ranks = members if ranks is None else tuple(sorted(ranks) if given.get("sort_ranks", True) else ranks)
        if given.get("use_local_synchronization"):
            return f"the new group of {', '.join(map(str, ranks))}", ranks, (ranks,)
        return group, members, (ranks,)


def _time_limit(group) -> float | None:
    with contextlib.suppress(Exception):  # a backend of another kind may have none
        return min(group._get_backend(device).options._timeout.total_seconds() for device in group._device_types)
    return None


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
    return name or next((name for name, known in c10d.ReduceOp.RedOpType.__members__.items() if op == known), str(op))
