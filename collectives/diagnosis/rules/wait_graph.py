"""Which ranks a call waits for, and the cycles of ranks that wait for each other. Pure."""

from collectives.diagnosis.rules.matching import Matching
from collectives.recording.call import Call
from collectives.semantics.calls import FROM_ROOT, GROUPS, POINT_TO_POINT, TO_ROOT


def kind_of(call: Call) -> str:
    """The name of the call, or of the one whose Work it waits for."""
    return call.awaited or call.name


def waits_for(matching: Matching, call: Call) -> list[int]:
    """The ranks that must each do something before the call can return; only the certain ones.

    A receive from any source waits for no particular rank. A rank that only gives data to the root
    may return before the others come.
    """
    name = kind_of(call)
    if name in POINT_TO_POINT:
        return [call.peer] if call.peer is not None and matching.messages.is_unmatched(call) else []
    if call.seq is None or name in GROUPS:
        return []
    absent = matching.of(call).absent(call.seq)
    if name in FROM_ROOT:
        return [call.peer] if call.peer in absent else []
    if name in TO_ROOT and call.rank != call.peer:
        return []
    return list(absent)


def find_cycles(edges: dict[int, list[int]]) -> list[tuple[int, ...]]:
    """Of each set of ranks that wait for each other, the shortest cycle; the shortest first."""
    cycles = []
    while cycle := find_cycle(edges):
        cycles.append(cycle)
        connected = _reached(edges, cycle[0]) & _reached(_reversed(edges), cycle[0])
        edges = {
            rank: [other for other in others if other not in connected]
            for rank, others in edges.items()
            if rank not in connected
        }
    return cycles


def _reached(edges: dict[int, list[int]], start: int) -> set[int]:
    """The ranks to which edges lead from there."""
    reached, left = set(), [start]
    while left:
        if (rank := left.pop()) not in reached:
            reached.add(rank)
            left += edges[rank]
    return reached


def _reversed(edges: dict[int, list[int]]) -> dict[int, list[int]]:
    return {rank: [one for one in edges if rank in edges[one]] for rank in edges}


def find_cycle(edges: dict[int, list[int]]) -> tuple[int, ...]:
    """The shortest cycle of ranks in which each waits for the next; empty if there is none."""
    best: tuple[int, ...] = ()
    for start in sorted(edges):
        paths: list[tuple[int, ...]] = [(start,)]
        seen = {start}
        while paths and not (best and len(paths[0]) >= len(best)):
            path = paths.pop(0)
            if start in edges[path[-1]]:
                best = path
                break
            new = [rank for rank in edges[path[-1]] if rank not in seen]
            seen.update(new)
            paths += [(*path, rank) for rank in new]
    return best
