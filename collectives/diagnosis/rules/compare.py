"""Whether the members of a group, and the two ends of a message, asked for the same thing: pure comparison of calls."""

import math
import re
from collections import Counter
from dataclasses import dataclass

from collectives.recording.call import GROUPS, Call

# Newer and older names of one function.
_SAME = {
    "all_gather_single": "all_gather_into_tensor",
    "_all_gather_base": "all_gather_into_tensor",
}
_SAME |= {
    "reduce_scatter_single": "reduce_scatter_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor",
}

_ALIKE = ("all_reduce", "broadcast", "reduce", "all_reduce_coalesced", "broadcast_object_list")


@dataclass(frozen=True)
class Difference:
    """What the calls differ in ("call", "group", "op", "root", "dtype", "shape", "splits", "tag", "order"), and who is to blame."""

    field: str
    guilty: tuple[int, ...]
    calls: dict[int, Call]


def minority(sides: dict[int, object]) -> tuple[int, ...]:
    """All ranks but those of the largest side; where no side is larger than all others, every rank."""
    counts = Counter(sides.values()).most_common()
    if len(counts) > 1 and counts[0][1] > counts[1][1]:
        return tuple(sorted(rank for rank, side in sides.items() if side != counts[0][0]))
    return tuple(sorted(sides))


def compare(calls: dict[int, Call]) -> Difference | None:
    """The first thing in which the ranks' calls of one collective differ."""
    for field, value in _FIELDS.items():
        sides = {rank: value(call) for rank, call in calls.items()}
        if len({side for side in sides.values() if side is not None}) > 1:
            return Difference(field, minority(sides), calls)
    name = plain_name(next(iter(calls.values())))
    if name in _ALIKE:
        sides = {rank: tuple(numel(text) for text in call.tensors) for rank, call in calls.items()}
        return (
            None if len(set(sides.values())) == 1 else Difference("shape", minority(sides), calls)
        )
    return _compare_pieces(name, calls)


def compare_message(send: Call, receive: Call) -> Difference | None:
    calls = {send.rank: send, receive.rank: receive}
    if ("object" in send.name) != ("object" in receive.name):
        return Difference("call", tuple(sorted(calls)), calls)
    given, wanted = (
        [(dtype(text), numel(text)) for text in call.tensors] for call in (send, receive)
    )
    if given == wanted or not given or not wanted:
        return None
    return Difference(
        "dtype" if given[0][0] != wanted[0][0] else "shape", tuple(sorted(calls)), calls
    )


def plain_name(call: Call) -> str:
    return _SAME.get(call.name, call.name)


def dtype(text: str) -> str:
    return text.partition("[")[0]


def numel(text: str) -> int:
    return math.prod(map(int, re.findall(r"\d+", text.partition("[")[2])))


def _dtypes(call: Call) -> tuple | None:
    return tuple(sorted({dtype(text) for text in call.tensors})) or None


# None: the rank does not say.
_FIELDS = {
    "call": plain_name,
    "group": lambda call: (call.members, call.ranks) if call.members else None,
    "root": lambda call: None if call.name in GROUPS else call.peer,
    "op": lambda call: call.op,
    "dtype": _dtypes,
}


def _compare_pieces(name: str, calls: dict[int, Call]) -> Difference | None:
    """Each rank's piece for each other one must be what that one has room for."""
    members = next(iter(calls.values())).members
    gives, wants = {}, {}
    for rank, call in calls.items():
        if (pieces := _pieces(name, call, len(members))) is None:
            return None
        gives[rank], wants[rank] = pieces
    involved: Counter[int] = Counter()
    for giver in calls:
        for taker in calls:
            given, wanted = gives[giver], wants[taker]
            if given and wanted and given[members.index(taker)] != wanted[members.index(giver)]:
                involved.update((giver, taker))
    if not involved:
        return None
    most = max(involved.values())
    guilty = tuple(sorted(rank for rank, count in involved.items() if count == most))
    return Difference(
        "splits"
        if any(call.splits not in (None, (None, None)) for call in calls.values())
        else "shape",
        guilty,
        calls,
    )


def _pieces(name: str, call: Call, n: int) -> tuple[list[int] | None, list[int] | None] | None:
    """How many elements the rank gives to each member, and wants from each; None where there is nothing to compare."""
    sizes = [numel(text) for text in call.tensors]
    is_root = call.rank == call.peer
    match name, len(sizes):
        case "all_gather", count if count == n + 1:
            return [sizes[-1]] * n, sizes[:-1]
        case "all_gather_into_tensor", 2:
            return [sizes[1]] * n, [sizes[0] // n] * n
        case "gather", count if count == 1 + n * is_root:
            return [sizes[0]] * n, sizes[1:] or None
        case "scatter", count if count == 1 + n * is_root:
            return sizes[1:] or None, [sizes[0]] * n
        case "reduce_scatter", count if count == n + 1:
            return sizes[1:], [sizes[0]] * n
        case "reduce_scatter_tensor", 2:
            return [sizes[1] // n] * n, [sizes[0]] * n
        case "all_to_all", count if count == 2 * n:
            return sizes[n:], sizes[:n]
        case "all_to_all_single", 2 if call.splits is not None:
            return tuple(_split(call.tensors[i], call.splits[i], n) for i in (1, 0))
    return None


def _split(text: str, splits: tuple[int, ...] | None, n: int) -> list[int]:
    rows = int((re.findall(r"\d+", text.partition("[")[2]) or ["1"])[0])
    row = numel(text) // max(1, rows)
    return (
        [count * row for count in splits] if splits and len(splits) == n else [numel(text) // n] * n
    )
