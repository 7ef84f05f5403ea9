"""Ranks that wait for others in a collective: who has not joined it, or came too late. Pure."""

from collections.abc import Iterable

from collectives.diagnosis.rules.compare import compare, minority
from collectives.diagnosis.rules.matching import Sequence
from collectives.diagnosis.rules.mismatch import mismatch, out_of_step
from collectives.diagnosis.rules.rank_state import NOT_ENDED
from collectives.diagnosis.rules.report import numbered, ranks
from collectives.diagnosis.rules.snapshot import Snapshot, Verdict
from collectives.diagnosis.rules.wait_graph import find_cycle
from collectives.recording.call import Call


def circular(snapshot: Snapshot) -> Verdict | None:
    """Ranks each of which waits for the next."""
    edges = {
        rank: [other for other in snapshot.waits_for(rank) if other in snapshot.inside]
        for rank in snapshot.inside
    }
    cycle = find_cycle(edges)
    if not cycle:
        return None
    note = f"-> circular wait: {' -> '.join(map(str, (*cycle, cycle[0])))}"
    verdicts = []
    for rank in cycle:
        call = snapshot.inside[rank]
        if call.seq is not None:
            sequence = snapshot.matching_of(call).of(call)
            verdicts.append(never_joined(snapshot, sequence, call.seq, cycle, [note]))
    found = [verdict for verdict in verdicts if verdict is not None]
    if found:  # each is true; the one that blames fewest ranks says most
        return min(found, key=lambda verdict: len(verdict.guilty))
    guilty = [snapshot.inside[rank] for rank in sorted(cycle)]
    what = f"{ranks(cycle)} wait for each other"
    return snapshot.verdict("hang", what, guilty, guilty[0], notes=[note], cycle=cycle)


def not_joined(snapshot: Snapshot) -> Verdict | None:
    """A collective in which some wait for others: these are elsewhere, have ended, or compute."""
    for matching in (snapshot.matching, snapshot.c10d):
        for sequence, seq in matching.waiting():
            waits = any(rank in snapshot.inside for rank in sequence.pending[seq])
            if waits and (verdict := never_joined(snapshot, sequence, seq)) is not None:
                return verdict
    return None


def never_joined(
    snapshot: Snapshot, sequence: Sequence, seq: int, cycle: tuple = (), notes: Iterable[str] = ()
) -> Verdict | None:
    """`cycle`: ranks that wait for each other, if this collective is part of that."""
    joined = sequence.pending.get(seq, {})
    absent = [rank for rank in sequence.absent(seq) if rank in snapshot.states]
    ended = [rank for rank in absent if _will_never_join(snapshot, sequence, rank)]
    if not joined or not absent or not (snapshot.stalled or ended or cycle):
        return None
    if (difference := compare(joined)) is not None:
        return mismatch(snapshot, difference)
    if any(snapshot.states[rank].status == "unheard" for rank in absent):
        return None
    elsewhere = [rank for rank in absent if snapshot.states[rank].status == "elsewhere"]
    call = next(iter(joined.values()))
    # Ranks that run elsewhere have joined the world, for else nobody would have come so far.
    is_done = call.name == "init_process_group" or all(one.left for one in joined.values())
    if len(elsewhere) == len(absent) and (is_done or not snapshot.waiting):
        return None
    computing = [rank for rank in absent if rank in snapshot.computing or rank in elsewhere]
    if computing and not ended and not cycle:
        kind, blamed = "slow", tuple(computing)
        has = "has" if len(computing) == 1 else "have"
        what = f"{ranks(computing)} {has} not joined {numbered(call)}"
    else:
        kind, blamed = "hang", minority({rank: rank in joined for rank in (*joined, *absent)})
        what = f"{ranks(absent)} never joined {numbered(call)}"
        if len(absent) > len(joined):
            what = f"only {ranks(joined)} joined {numbered(call)}"
    places = {rank: joined.get(rank) or snapshot.place(rank) for rank in blamed}
    notes = [*notes, *out_of_step(sequence, places, before=seq)]
    guilty = [places[rank] for rank in sorted(places)]
    return snapshot.verdict(kind, what, guilty, call, notes=notes, cycle=cycle)


def _will_never_join(snapshot: Snapshot, sequence: Sequence, rank: int) -> bool:
    """Whether the rank has ended, or destroyed the group.

    Of collectives from C++ the latter is not certain: they may be known for others, and not yet for
    this rank.
    """
    if snapshot.states[rank].status not in NOT_ENDED:
        return True
    is_own = any(sequence is one for one in snapshot.matching.sequences.values())
    return is_own and rank in snapshot.matching.destroyed


def came_late(snapshot: Snapshot) -> Verdict | None:
    """All joined a collective, but one so late that another had given up, and ended for it."""
    calls: dict[int, Call] = snapshot.matching.given_up
    ended = [
        call
        for rank, call in calls.items()
        if call.error and snapshot.states[rank].status == "raised"
    ]
    if not ended:
        return None
    first = min(ended, key=lambda call: call.left or 0)
    gave_up_at = first.left or 0
    late = {rank: call for rank, call in calls.items() if call.entered > gave_up_at}
    if not late:
        return None
    waited = (gave_up_at - first.entered) / 1e9
    came_after = (min(call.entered for call in late.values()) - first.entered) / 1e9
    what = f"{ranks(late)} came to {numbered(first)} when rank {first.rank} had given up"
    note = f"rank {first.rank} gave up after {waited:.1f} s; "
    note += f"the other side came after {came_after:.1f} s"
    return snapshot.verdict("slow", what, late.values(), first, calls, [note])
