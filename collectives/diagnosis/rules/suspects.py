"""Circles of ranks that wait, and which ranks can have caused it, if one rank alone has. Pure.

All ranks of a correct program run through one order of its calls, each through those that concern
it. So "this rank is ahead of that one" has no circle among them. Where it has one, the rank that
does something else than the program is part of it: it is in every circle. If that leaves several,
the way that each has come through the lines of the program may decide.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

from collectives.diagnosis.rules.matching import Matching, Step, kind_of
from collectives.diagnosis.rules.snapshot import Snapshot
from collectives.recording.call import Call
from collectives.recording.ending import Ending
from collectives.semantics.calls import POINT_TO_POINT


def suspects(snapshot: Snapshot) -> tuple[int, ...]:
    """The ranks of which one is at fault; none where that cannot be said."""
    ahead = _ahead(snapshot)
    for rank in ahead:
        if will_never_come(snapshot, rank):  # it is ahead of all that wait for it
            ahead[rank] |= {other for other in ahead if rank in ahead[other]}
    edges = {rank: sorted(others) for rank, others in ahead.items()}
    found = [rank for rank in find_cycle(edges) if _is_in_all_circles(rank, edges)]
    return tuple(sorted(_stray(snapshot.matching, found)))


def will_never_come(snapshot: Snapshot, rank: int) -> bool:
    """Whether the rank has ended, or destroyed the group of all ranks, and not lost others."""
    has_ended = snapshot.states[rank].status.is_over
    return rank not in snapshot.inside and (has_ended or rank in snapshot.matching.destroyed)


def _ahead(snapshot: Snapshot) -> dict[int, set[int]]:
    """By rank, those that have not made their call to one that it has made."""
    ahead: dict[int, set[int]] = {rank: set() for rank in snapshot.states}

    def note(call: Call, others: Iterable[int]) -> None:
        state = snapshot.states.get(call.rank)
        goes_on = (
            call.error and state and state.status is Ending.RUNNING
        )  # it was told, and caught it
        if state and not goes_on:
            ahead[call.rank] |= {rank for rank in others if rank in ahead}

    # torch's own record is of one moment on all ranks only when nothing moves.
    for matching in (snapshot.matching, *[snapshot.c10d] * snapshot.stalled):
        for sequence, seq in matching.waiting():
            absent = sequence.absent(seq)
            for call in sequence.pending[seq].values():
                note(call, absent)
    for call in snapshot.matching.messages.unmatched():
        if call.peer is not None and snapshot.matching.knows_messages_of(call):
            note(call, [call.peer])
    for rank, call in snapshot.inside.items():
        if kind_of(call) in POINT_TO_POINT:
            note(call, snapshot.waits_for(rank))
    return ahead


def _is_in_all_circles(rank: int, behind: dict[int, list[int]]) -> bool:
    rest = {
        other: [one for one in others if one != rank]
        for other, others in behind.items()
        if other != rank
    }
    try:
        TopologicalSorter(rest).prepare()
    except CycleError:
        return False
    return True


def _stray(matching: Matching, suspected: list[int]) -> list[int]:
    """Of these ranks, the one that has taken a turn that neither it nor another rank took again.

    All of them if the others are not beyond doubt: each has been through some lines twice, and has
    taken each turn often, or where it took no other.
    """
    turns = {rank: Counter(pairwise(path)) for rank, path in matching.paths.items()}
    known = [rank for rank in suspected if rank in turns.keys() - matching.since]
    doubtful = [rank for rank in suspected if rank not in known or _rare(turns[rank], 2) != set()]
    if len(doubtful) != 1 or doubtful[0] not in known:
        return suspected
    by_others = {turn for rank in turns.keys() - set(doubtful) for turn in turns[rank]}
    return doubtful if (_rare(turns[doubtful[0]], 1) or set()) - by_others else suspected


def _rare(turns: Counter, most: int) -> set[tuple] | None:
    """The turns that a rank took so rarely, where it took others, too; None if it came nowhere
    twice.
    """
    by_step: dict[Step, list[tuple]] = defaultdict(list)
    for turn, count in turns.items():
        by_step[turn[0]] += [turn] * count
    again = [taken for taken in by_step.values() if len(taken) > 1]
    branches = [taken for taken in again if len(set(taken)) > 1]
    return {turn for taken in branches for turn in taken if turns[turn] <= most} if again else None


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
