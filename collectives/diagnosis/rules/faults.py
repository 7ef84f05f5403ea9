"""What a rank did wrong itself: a call that does not fit, an exception, a death, leaving. Pure."""

import re
from collections.abc import Collection

from collectives.diagnosis.rules import aborted
from collectives.diagnosis.rules.compare import Difference
from collectives.diagnosis.rules.matching import Sequence, kind_of, waits_for
from collectives.diagnosis.rules.rank_state import State
from collectives.diagnosis.rules.report import against, locations, number_of, numbered
from collectives.diagnosis.rules.snapshot import Snapshot, Verdict
from collectives.recording.call import WORLD, Call
from collectives.recording.ending import Ending
from collectives.recording.lost_peer import is_lost, timed_out
from collectives.semantics.calls import POINT_TO_POINT, RECEIVES, SENDS
from collectives.words import ranks


def differing(snapshot: Snapshot) -> Verdict | None:
    """The first difference between calls: of Python, then where gloo aborted, then of C++."""
    own, c10d = snapshot.matching, snapshot.c10d
    if own.difference is not None:
        call = next(iter(own.difference.calls.values()))
        return mismatch(snapshot, own.difference, own.of(call))
    if (difference := aborted.difference(snapshot)) is not None:
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
        what = f"different calls as {number_of(call)} of group {call.group}"
    else:
        what = f"{field} of {numbered(call)}"
    places = {rank: calls[rank] for rank in difference.guilty}
    notes = []
    if sequence is not None and not is_message and field != "order":
        notes = out_of_step(sequence, places, before=call.seq or 0)
    lines = {(each_call.file, each_call.line) for each_call in calls.values()}
    if field in ("shape", "dtype") and not (is_message or notes) and len(lines) > 1:
        notes = [f"from different lines, so these may be different calls: {locations(calls)}"]
    elif len({each_call.way for each_call in calls.values()}) > 1:
        ways = "; ".join(
            f"rank {rank} by {each_call.way}"
            for rank, each_call in sorted(calls.items())
            if each_call.way
        )
        notes.append(f"different calls, by other ways to that line: {ways}")
    what = f"{what}: {against(difference.guilty, calls)}"
    return snapshot.verdict(Ending.MISMATCH, what, places.values(), call, calls, notes, field=field)


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
    first = min(step.calls.values(), key=lambda call: call.shown_seq or 0)
    return [f"out of step since {number_of(first)}: {locations(step.calls)}"]


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


def failed(snapshot: Snapshot) -> Verdict | None:
    """A rank that raised or died by itself; not one that only lost the others.

    Of several, the first one; but one that died while it waited for others, or as it lost them,
    more likely died because of them.
    """
    failures = {
        rank: failure for rank, failure in snapshot.states.items() if _failed(snapshot, rank)
    }
    if not failures:
        return None

    def order(rank: int) -> tuple:
        return failures[rank].status is Ending.DIED and _waited(snapshot, rank), failures[rank].at

    rank = min(failures, key=order)
    state, here = failures[rank], snapshot.place(rank)
    if state.status is Ending.DIED:
        blamed, what = [rank], f"rank {rank} {state.text}"
    else:
        blamed = _raised_alike(failures, rank)
        what = f"{ranks(blamed)}: {failures[rank if rank in blamed else blamed[0]].text}"
    about = here if here.name else None
    return snapshot.verdict(state.status, what, map(snapshot.place, blamed), about)


def _failed(snapshot: Snapshot, rank: int) -> bool:
    state = snapshot.states[rank]
    if state.status is Ending.DIED:
        return not _died_of_others(snapshot, rank)
    return state.status is Ending.RAISED and not is_lost(state.text)


def _raised_alike(failed: dict[int, State], rank: int) -> list[int]:
    """The ranks that raised the same exception at the same line as this one.

    If all their messages name one of them, only that one: DDP names the rank that differs.
    """

    def kind(state: State) -> tuple:  # the message may differ from rank to rank
        return state.status, state.error or state.text, state.where

    alike = [
        other
        for other, state in failed.items()
        if other == rank or (state.where[0] and kind(state) == kind(failed[rank]))
    ]
    named = [re.findall(r"\brank (\d+)", failed[other].text, re.IGNORECASE) for other in alike]
    by_all = set.intersection(*({int(number) for number in numbers} for numbers in named))
    return list(by_all) if len(by_all) == 1 and by_all <= set(alike) else alike


def _waited(snapshot: Snapshot, rank: int) -> bool:
    last = snapshot.matching.last.get(rank)
    is_inside = bool(snapshot.matching.open.get(rank))
    return is_inside or (last is not None and is_lost(last.error or ""))


def _died_of_others(snapshot: Snapshot, rank: int) -> bool:
    """Whether a rank died because it waited for others, or lost them.

    One of these had returned before, or had lost another rank itself.
    """
    opened, last = snapshot.matching.open.get(rank), snapshot.matching.last.get(rank)
    if opened:
        call = opened[max(opened)]
    elif last is not None and last.error:
        call = last
    else:
        return False
    died_at = snapshot.states[rank].at
    for other in waits_for(snapshot.matching, call):
        state = snapshot.states.get(other)
        if state is None or state.at >= died_at:
            continue
        if state.status is Ending.RETURNED:
            return True
        if state.status is Ending.RAISED and other in snapshot.inside:
            waited_for = snapshot.waits_for(other)
            if waited_for and rank not in waited_for:
                return True
    return False


def left_early(snapshot: Snapshot) -> Verdict | None:
    """A rank lost others that had joined its call, and that left before it was done."""
    states = snapshot.states
    for rank, call in snapshot.inside.items():
        if states[rank].status is not Ending.RAISED:
            continue
        if kind_of(call) in POINT_TO_POINT:
            others: Collection[int] = () if call.peer is None else (call.peer,)
        else:
            others = states if call.group == WORLD else call.members
        known = [other for other in others if other in states]
        left = [other for other in known if _left_before(states[other], states[rank].at)]
        if left:
            what = f"{ranks(left)} left before {kind_of(call)} was done"
            what += f"; rank {rank}: {states[rank].text}"
            return snapshot.verdict(Ending.RAISED, what, map(snapshot.place, left), call)
    return None


def _left_before(state: State, at: int) -> bool:
    return state.status is Ending.RETURNED and (state.unseen or 0 < state.at < at)


def lost(snapshot: Snapshot) -> Verdict | None:
    """Ranks lost others, and nothing shows why: blame the first of them.

    If it timed out, blame those that were last seen elsewhere.
    """
    states = snapshot.states
    raised = {rank: state.at for rank, state in states.items() if state.status is Ending.RAISED}
    someone_runs = not all(state.status.is_over for state in states.values())
    if not raised or (someone_runs and not snapshot.stalled):
        return None
    rank = min(raised, key=raised.__getitem__)
    here, text = snapshot.place(rank), states[rank].text
    seen = {other: states[other].where[:2] for other in snapshot.computing}
    slow = [other for other, line in seen.items() if line[0] and line != (here.file, here.line)]
    if slow and here.name and timed_out(text):
        what = f"{ranks(slow)} had not reached {kind_of(here)} when rank {rank} gave up"
        return snapshot.verdict(Ending.SLOW, f"{what}: {text}", map(snapshot.place, slow), here)
    return snapshot.verdict(Ending.RAISED, f"rank {rank}: {text}", [here])
