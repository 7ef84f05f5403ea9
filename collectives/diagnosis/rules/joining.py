"""Ranks that wait for others in a collective: who has not joined it, or came too late. Pure."""

from collections.abc import Iterable

from collectives.diagnosis.rules.compare import compare, minority
from collectives.diagnosis.rules.matching import Sequence
from collectives.diagnosis.rules.mismatch import mismatch, out_of_step
from collectives.diagnosis.rules.rank_state import NOT_ENDED
from collectives.diagnosis.rules.report import numbered
from collectives.diagnosis.rules.snapshot import Snapshot, Verdict
from collectives.diagnosis.rules.suspects import suspects
from collectives.diagnosis.rules.wait_graph import find_cycles
from collectives.recording.call import Call
from collectives.words import ranks


def circular(snapshot: Snapshot) -> Verdict | None:
    """Ranks each of which waits for the next."""
    edges = {
        rank: [other for other in snapshot.waits_for(rank) if other in snapshot.inside]
        for rank in snapshot.inside
    }
    cycles = find_cycles(edges)
    if not cycles:
        return None
    joins: dict[tuple, tuple[Sequence, int]] = {}
    says = []
    for cycle in cycles:
        calls = [snapshot.inside[rank] for rank in cycle if snapshot.inside[rank].seq is not None]
        for call in calls:
            sequence = snapshot.matching_of(call).of(call)
            joins[id(sequence), call.seq] = sequence, call.seq or 0
        if not calls:
            says.append(f"{ranks(cycle)} wait for each other")
    for sequence, seq in joins.values():
        if (difference := compare(sequence.pending[seq])) is not None:
            return mismatch(snapshot, difference)
    guilty = suspects(snapshot) or tuple(sorted(rank for cycle in cycles for rank in cycle))

    def inner_group_first(join: tuple[Sequence, int]) -> tuple:
        absent = _absent(snapshot, *join)
        return not set(absent) <= set(guilty), len(join[0].members), len(absent)

    in_order = sorted(joins.values(), key=inner_group_first)
    says = [_never_joined(*join, _absent(snapshot, *join)) for join in in_order] + says
    notes = [f"-> circular wait: {' -> '.join(map(str, (*cycle, cycle[0])))}" for cycle in cycles]
    if in_order:
        notes += says[1:]
        return _verdict(snapshot, "hang", says[0], *in_order[0], guilty, notes, cycle=cycles[0])
    places = [snapshot.place(rank) for rank in guilty]
    what = "; ".join(says)
    return snapshot.verdict("hang", what, places, places[0], notes=notes, cycle=cycles[0])


def not_joined(snapshot: Snapshot) -> Verdict | None:
    """A collective in which some wait for others: these are elsewhere, have ended, or compute."""
    for matching in (snapshot.matching, snapshot.c10d):
        for sequence, seq in matching.waiting():
            waits = any(rank in snapshot.inside for rank in sequence.pending[seq])
            if waits and (verdict := _incomplete(snapshot, sequence, seq)) is not None:
                return verdict
    return None


def _incomplete(snapshot: Snapshot, sequence: Sequence, seq: int) -> Verdict | None:
    joined = sequence.pending[seq]
    # A rank that waits for others itself would come after them.
    absent = [rank for rank in _absent(snapshot, sequence, seq) if not snapshot.is_held_up(rank)]
    ended = [rank for rank in absent if _will_never_join(snapshot, sequence, rank)]
    if not absent or not (snapshot.stalled or ended):
        return None
    if (difference := compare(joined)) is not None:
        return mismatch(snapshot, difference)
    if any(snapshot.states[rank].status in ("unheard", "unasked") for rank in absent):
        return None
    elsewhere = [rank for rank in absent if snapshot.states[rank].status == "elsewhere"]
    call = next(iter(joined.values()))
    # Ranks that run elsewhere have joined the world, for else nobody would have come so far.
    is_done = call.name == "init_process_group" or all(one.left for one in joined.values())
    if len(elsewhere) == len(absent) and (is_done or not snapshot.waiting):
        return None
    computing = [rank for rank in absent if rank in snapshot.computing or rank in elsewhere]
    if computing and not ended:
        has = "has" if len(computing) == 1 else "have"
        what = f"{ranks(computing)} {has} not joined {numbered(call)}"
        return _verdict(snapshot, "slow", what, sequence, seq, computing)
    guilty = suspects(snapshot) or minority({rank: rank in joined for rank in (*joined, *absent)})
    what = _never_joined(sequence, seq, absent)
    return _verdict(snapshot, "hang", what, sequence, seq, guilty)


def _verdict(
    snapshot: Snapshot,
    kind: str,
    what: str,
    sequence: Sequence,
    seq: int,
    guilty: Iterable[int],
    notes: Iterable[str] = (),
    **fields,
) -> Verdict:
    """`what`: what is to say of this collective. Of the guilty, those that it names come first."""
    joined = sequence.pending[seq]
    places = {
        rank: joined.get(rank) or snapshot.place(rank)
        for rank in sorted(guilty, key=lambda rank: (rank in joined, rank))
    }
    notes = [*notes, *out_of_step(sequence, places, before=seq)]
    about = next(iter(joined.values()))
    return snapshot.verdict(kind, what, places.values(), about, notes=notes, **fields)


def _absent(snapshot: Snapshot, sequence: Sequence, seq: int) -> list[int]:
    return [rank for rank in sequence.absent(seq) if rank in snapshot.states]


def _never_joined(sequence: Sequence, seq: int, absent: list[int]) -> str:
    joined = sequence.pending[seq]
    call = next(iter(joined.values()))
    if len(absent) > len(joined):
        return f"only {ranks(joined)} joined {numbered(call)}"
    return f"{ranks(absent)} never joined {numbered(call)}"


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
    what = f"{ranks(late)} joined {numbered(first)} only after rank {first.rank} had given up"
    note = f"rank {first.rank} gave up after {waited:.1f} s; "
    note += f"the next rank joined after {came_after:.1f} s"
    return snapshot.verdict("slow", what, late.values(), first, calls, [note])
