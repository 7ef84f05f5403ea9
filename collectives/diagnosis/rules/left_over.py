"""Messages and collectives that wait in vain, where no earlier rule explains it. Pure."""

from collectives.diagnosis.rules.compare import compare, minority
from collectives.diagnosis.rules.matching import Sequence
from collectives.diagnosis.rules.mismatch import mismatch
from collectives.diagnosis.rules.rank_state import NOT_ENDED, OUT_OF_SIGHT
from collectives.diagnosis.rules.report import numbered
from collectives.diagnosis.rules.snapshot import Snapshot, Verdict
from collectives.diagnosis.rules.suspects import suspects
from collectives.diagnosis.rules.wait_graph import kind_of
from collectives.recording.call import Call
from collectives.semantics.calls import POINT_TO_POINT, RECEIVES
from collectives.words import ranks


def not_met(snapshot: Snapshot) -> Verdict | None:
    """A message of which one end waits for the other, in vain."""

    def lost_others(call: Call) -> bool:
        peer = call.peer
        return peer in snapshot.inside and snapshot.states[peer].status == "raised"

    # Ranks whose peer has lost others itself tell less than ranks whose peer has just returned.
    for call in sorted(snapshot.inside.values(), key=lost_others):
        if kind_of(call) in POINT_TO_POINT and (verdict := _other_end(snapshot, call)) is not None:
            return verdict
    return None


def _other_end(snapshot: Snapshot, call: Call) -> Verdict | None:
    """Who does not send or receive what this call waits for."""
    rank, states = call.rank, snapshot.states
    missing = snapshot.waits_for(rank)
    if not missing and not snapshot.matching.knows_messages_of(call):
        return None
    if not missing and call.peer is None and not snapshot.matching.messages.sent_to(call):
        missing = list(states)
    missing = [
        other
        for other in missing
        if other in states and other != rank and not snapshot.is_held_up(other)
    ]
    running = [other for other in missing if states[other].status in NOT_ENDED]
    # A rank that takes what comes from anybody may be a server, which its launcher will end.
    may_go_on = running or call.peer is None
    if not missing or (may_go_on and not snapshot.stalled):
        return None
    computing = [other for other in running if other in snapshot.computing]
    kind, blamed = "slow", tuple(computing)
    if not computing:
        kind, blamed = "hang", suspects(snapshot) or tuple(sorted((rank, *missing)))
    who = f"{ranks(missing)} to receive its message"
    if kind_of(call) in RECEIVES:
        who = f"a message from {ranks(missing)}"
    guilty = map(snapshot.place, blamed)
    return snapshot.verdict(kind, f"rank {rank} waits for {who}", guilty, call)


def left_over(snapshot: Snapshot) -> Verdict | None:
    """All ranks have ended, or nothing moves: what has still no counterpart never got one."""
    if any(state.status in ("running", "missing") for state in snapshot.states.values()):
        return _nothing_moves(snapshot)
    for matching in (snapshot.matching, snapshot.c10d):
        for sequence, seq in matching.waiting():
            if (verdict := _incomplete(snapshot, sequence, seq)) is not None:
                return verdict
    return _unmatched_message(snapshot)


def _nothing_moves(snapshot: Snapshot) -> Verdict | None:
    if not snapshot.stalled or not snapshot.inside or snapshot.computing:
        return None
    # Whoever waits for others tells nothing.
    last = [call for rank, call in snapshot.inside.items() if not snapshot.waits_for(rank)]
    waits = "waits" if len(last) == 1 else "wait"
    what = f"{ranks(call.rank for call in last)} {waits}, and nothing moves"
    if (
        len({(call.group, call.seq, kind_of(call)) for call in last}) == 1
        and last[0].seq is not None
    ):
        what = (
            f"{ranks(call.rank for call in last)} {waits} in {numbered(last[0])}, and nothing moves"
        )
    return snapshot.verdict("hang", what, () if snapshot.not_judged() else last)


def _incomplete(snapshot: Snapshot, sequence: Sequence, seq: int) -> Verdict | None:
    """A collective that some ranks never joined."""
    joined = sequence.pending[seq]
    if (difference := compare(joined)) is not None:
        return mismatch(snapshot, difference)
    states = snapshot.states
    absent = [rank for rank in sequence.absent(seq) if states[rank].status not in OUT_OF_SIGHT]
    # If it raised in all ranks, these were told, and went on.
    if not absent or all(call.error for call in joined.values()):
        return None
    call = next(iter(joined.values()))
    blamed = suspects(snapshot) or minority({rank: rank in joined for rank in (*joined, *absent)})
    guilty = [joined.get(rank) or snapshot.place(rank) for rank in blamed]
    what = f"{ranks(absent)} never joined {numbered(call)}"
    return snapshot.verdict("mismatch", what, guilty, call, joined, field="call")


def _unmatched_message(snapshot: Snapshot) -> Verdict | None:
    states = snapshot.states
    for call in snapshot.matching.messages.unmatched():
        if not snapshot.matching.knows_messages_of(call):
            continue
        if call.peer in states and states[call.peer].status in OUT_OF_SIGHT:
            continue
        if call.name in RECEIVES and states[call.rank].unseen:  # it served others to the end
            continue
        guilty = (call, snapshot.place(call.peer)) if call.peer in states else (call,)
        what = f"no rank received the message of rank {call.rank}"
        if call.name in RECEIVES:
            what = f"no rank sent the message for which rank {call.rank} waited"
        return snapshot.verdict("mismatch", what, guilty, call, {call.rank: call}, field="call")
    return None
