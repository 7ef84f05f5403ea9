"""Calls that belong together and do not fit: what differs, and whose call it is. Pure."""

from collectives.diagnosis.rules import failures
from collectives.diagnosis.rules.compare import Difference
from collectives.diagnosis.rules.matching import Sequence, kind_of
from collectives.diagnosis.rules.report import against, locations, numbered
from collectives.diagnosis.rules.snapshot import Snapshot, Verdict
from collectives.recording.call import Call
from collectives.semantics.calls import POINT_TO_POINT, RECEIVES, SENDS


def differing(snapshot: Snapshot) -> Verdict | None:
    """The first difference between calls: of Python, then where gloo aborted, then of C++."""
    own, c10d = snapshot.matching, snapshot.c10d
    if own.difference is not None:
        call = next(iter(own.difference.calls.values()))
        return mismatch(snapshot, own.difference, own.of(call))
    if (difference := failures.aborted(snapshot)) is not None:
        return mismatch(snapshot, difference)
    if c10d.difference is not None:
        call = next(iter(c10d.difference.calls.values()))
        return mismatch(snapshot, c10d.difference, c10d.of(call))
    return None


def mismatch(
    snapshot: Snapshot, difference: Difference, sequence: Sequence | None = None
) -> Verdict:
    """`sequence`: that of the calls, if ranks may have fallen out of step in it before."""
    calls, field = difference.calls, difference.field
    call = next(iter(calls.values()))
    is_message = kind_of(call) in POINT_TO_POINT
    if is_message:
        what = f"{field} of the two ends of a message"
    elif field == "call":
        what = f"different calls as #{call.seq} of group {call.group}"
    else:
        what = f"{field} of {numbered(call)}"
    places = {rank: calls[rank] for rank in difference.guilty}
    notes = []
    if sequence is not None and not is_message and field != "order":
        notes = out_of_step(sequence, places, before=call.seq or 0)
    what = f"{what}: {against(difference.guilty, calls)}"
    return snapshot.verdict("mismatch", what, places.values(), call, calls, notes, field=field)


def out_of_step(sequence: Sequence, places: dict[int, Call], before: int) -> list[str]:
    """Say where ranks fell out of step before that collective, if they did.

    Their calls there replace those in `places`, which holds the calls to blame.
    """
    step = sequence.sites.out_of_step(sequence.pending)
    if step is None or not set(step.guilty) <= set(places):
        return []
    since = next(iter(step.calls.values())).seq or 0
    if since >= before:
        return []
    places |= {rank: step.calls[rank] for rank in step.guilty}
    return [f"out of step since #{since}: {locations(step.calls)}"]


def crossed_tags(snapshot: Snapshot) -> Verdict | None:
    """A sender and a receiver that wait for each other with different tags."""
    for rank, call in snapshot.inside.items():
        other = snapshot.inside.get(call.peer) if call.peer is not None else None
        if other is None or other.peer != rank or other.tag == call.tag:
            continue
        if kind_of(call) not in SENDS or kind_of(other) not in RECEIVES:
            continue
        if snapshot.waits_for(rank) and snapshot.waits_for(other.rank):
            ends = {rank: call, other.rank: other}
            return mismatch(snapshot, Difference("tag", tuple(sorted(ends)), ends))
    return None
