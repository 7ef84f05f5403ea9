"""Who waits for whom: the ranks without which a call cannot return, and the circles that this makes. Pure."""

from collectives.diagnosis.rules.matching import Matching
from collectives.recording.call import GROUPS, POINT_TO_POINT, Call

_FROM_ROOT = ("broadcast", "scatter", "broadcast_object_list", "scatter_object_list")
_TO_ROOT = ("reduce", "gather", "gather_object")


def kind_of(call: Call) -> str:
    """The name of the call, or of the one whose Work it waits for."""
    return call.awaited or call.name


def waits_for(matching: Matching, call: Call) -> list[int]:
    """The ranks each of which must do something before the call can return; only those of which that is certain.

    A receive from any source waits for no one rank; a root that only sends may return before the others come.
    """
    if kind_of(call) in POINT_TO_POINT:
        return [call.peer] if call.peer is not None and matching.messages.is_unmatched(call) else []
    if call.seq is None or kind_of(call) in GROUPS:
        return []
    absent = matching.of(call).absent(call.seq)
    if kind_of(call) in _FROM_ROOT:
        return [call.peer] if call.peer in absent else []
    return [] if kind_of(call) in _TO_ROOT and call.rank != call.peer else list(absent)


def find_cycle(edges: dict[int, list[int]]) -> tuple[int, ...]:
    """The shortest circle of ranks of which each waits for the next; empty if there is none."""
    best: tuple[int, ...] = ()
    for start in sorted(edges):
        paths, seen = [(start,)], {start}
        while paths and not (best and len(paths[0]) >= len(best)):
            path = paths.pop(0)
            if start in edges[path[-1]]:
                best = path
                break
            new = [rank for rank in edges[path[-1]] if rank not in seen]
            seen.update(new)
            paths += [(*path, rank) for rank in new]
    return best
