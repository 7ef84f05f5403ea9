"""Ranks that gloo ended, because a message was longer than the tensor for it. Pure.

gloo does this by SIGABRT, and torch's own record ends with the process. So the calls that C++ made
are not known, but the lines are.
"""

import signal
from dataclasses import replace

from collectives.diagnosis.rules.compare import Difference, compare
from collectives.diagnosis.rules.snapshot import Snapshot, Verdict
from collectives.recording.call import Call
from collectives.recording.ending import Ending
from collectives.recording.lost_peer import is_lost
from collectives.words import ranks


def difference(snapshot: Snapshot) -> Difference | None:
    """The difference between the calls of ranks that gloo ended by SIGABRT."""
    ended = [rank for rank, state in snapshot.states.items() if state.signal == signal.SIGABRT]
    if not ended:
        return None
    inside = snapshot.inside | {rank: call for rank in ended if (call := snapshot.place(rank)).name}
    inside |= _calls_at_the_same_line(snapshot, inside)
    for rank in inside.keys() & set(ended):
        calls = {
            other: call
            for other, call in inside.items()
            if call.group == inside[rank].group and call.seq is not None
        }
        of_groups = {member for call in calls.values() for member in call.members}
        members = tuple(sorted(calls.keys() | of_groups))
        calls = {other: replace(call, members=members) for other, call in calls.items()}
        if len(calls) > 1 and (first_difference := compare(calls)):
            return first_difference
    return None


def _calls_at_the_same_line(snapshot: Snapshot, inside: dict[int, Call]) -> dict[int, Call]:
    """For each rank that is in no known call: the call that another rank makes at its line.

    The record of what C++ called ended with the process.
    """
    found = {}
    for rank in snapshot.states.keys() - inside.keys():
        here = snapshot.place(rank)
        for call in inside.values():
            if (call.file, call.line) == (here.file, here.line):
                found[here.rank] = replace(call, rank=here.rank)
                break
    return found


def unknown_calls(snapshot: Snapshot) -> Verdict | None:
    """gloo ended a rank for a message of another rank, and not both calls are known."""
    ended = [rank for rank in snapshot.states if _was_ended_by_gloo(snapshot, rank)]
    others = [
        rank
        for rank, state in snapshot.states.items()
        if rank not in ended
        and (rank in snapshot.inside or (state.status is Ending.RAISED and is_lost(state.text)))
        and not any(_are_together(snapshot, rank, other) for other in ended)
    ]
    places = [snapshot.place(rank) for rank in sorted((*ended, *others))]
    if not ended or len({(place.file, place.line) for place in places}) < 2:
        return None
    what = f"different calls: gloo ended {ranks(ended)}, for a message longer than its call takes"
    about = next((place for place in places if place.name), None)
    return snapshot.verdict(Ending.MISMATCH, what, places, about, field="call")


def _was_ended_by_gloo(snapshot: Snapshot, rank: int) -> bool:
    """Whether it died as gloo ends a process, inside a call."""
    state, place = snapshot.states[rank], snapshot.place(rank)
    is_inside = (bool(place.name) and place.backend in ("", "gloo")) or bool(state.torch_does)
    return state.signal == signal.SIGABRT and is_inside


def _are_together(snapshot: Snapshot, rank: int, other: int) -> bool:
    """Whether both are known to be in one collective, which then fits."""
    here, there = snapshot.place(rank), snapshot.place(other)
    is_same = here.seq is not None and (here.group, here.seq) == (there.group, there.seq)
    return bool(here.name and there.name) and is_same
