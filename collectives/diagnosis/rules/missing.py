"""Who did not come: to the world, to a collective, or to the other end of a message. Pure."""

import dataclasses
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from collectives.diagnosis.rules.compare import compare, minority
from collectives.diagnosis.rules.faults import mismatch, out_of_step
from collectives.diagnosis.rules.matching import Sequence, kind_of
from collectives.diagnosis.rules.report import against, format_call, join_as, location, numbered
from collectives.diagnosis.rules.snapshot import Snapshot, Verdict
from collectives.diagnosis.rules.suspects import find_cycles, suspects
from collectives.recording.call import WORLD, Call
from collectives.recording.ending import Ending
from collectives.semantics.calls import POINT_TO_POINT, RECEIVES
from collectives.words import ranks


@dataclass(frozen=True)
class JoiningWorld:
    """What is known of the ranks of one world, by rank. `place`: a number for where they meet.

    `joining`: the calls of those that wait for the others. `last`: their last calls. `launched_as`:
    the rank that the launcher gave to their process. `meets`: where each of them looks for the
    others. `lines`: what each does, and where, for the report.
    """

    place: int
    size: int
    absent: list[int]
    joining: dict[int, Call]
    last: dict[int, Call]
    launched_as: dict[int, int | None]
    meets: dict[int, str]
    lines: dict[int, tuple[str, str]]


def never_met(worlds: list[JoiningWorld]) -> Verdict | None:
    """`worlds`: those in which ranks are absent or wait for others."""
    for world in worlds:
        alike = [one for one in worlds if (one.place, one.size) == (world.place, world.size)]
        if (verdict := _joined_as_others(world, alike)) is not None:
            return verdict
    return _joined_elsewhere(worlds)


def _joined_as_others(world: JoiningWorld, alike: list[JoiningWorld]) -> Verdict | None:
    """Ranks that join as the rank of another process."""
    calls = {one.launched_as[rank]: call for one in alike for rank, call in one.joining.items()}
    absent = [rank for rank in world.absent if rank in calls and rank != calls[rank].rank]
    wrong = {rank: dataclasses.replace(calls[rank], rank=rank) for rank in absent}
    if not wrong:
        return None
    lines = {rank: (f"in {format_call(call)}", location(call)) for rank, call in wrong.items()}
    lines = world.lines | lines
    what = join_as(wrong, {calls[rank].rank for rank in wrong})
    return Verdict(Ending.HUNG, what, tuple(wrong.values()), group=WORLD, seq=1, lines=lines)


def _joined_elsewhere(worlds: list[JoiningWorld]) -> Verdict | None:
    """Ranks that would make one world together, if they agreed on its size and its place."""
    here = [rank for world in worlds for rank in world.meets]
    if len(set(here)) < len(here):
        return None  # a rank is there twice: these are several jobs
    calls = {rank: call for world in worlds for rank, call in world.last.items()}
    sizes = {rank: f"world_size={world.size}" for world in worlds for rank in world.last}
    meets = {rank: world.meets[rank] for world in worlds for rank in world.last}
    for field, sides in (("world_size", sizes), ("store", meets)):
        if len({side for side in sides.values() if side}) > 1:
            return _disagree(field, sides, calls, worlds)
    return None


def _disagree(
    field: str, sides: dict[int, str], calls: dict[int, Call], worlds: list[JoiningWorld]
) -> Verdict:
    guilty = minority(sides)
    note = "; ".join(
        f"{side or 'somewhere'} on {ranks(rank for rank in sides if sides[rank] == side)}"
        for side in sorted(set(sides.values()))
    )
    lines = {rank: world.lines[rank] for world in worlds for rank in world.meets}
    what = f"{field} of init_process_group: {against(guilty, calls)}"
    blamed = tuple(calls[rank] for rank in guilty)
    return Verdict(
        Ending.MISMATCH, what, blamed, group=WORLD, seq=1, field=field, lines=lines, notes=(note,)
    )


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
        return _verdict(
            snapshot, Ending.HUNG, says[0], *in_order[0], guilty, notes, cycle=cycles[0]
        )
    places = [snapshot.place(rank) for rank in guilty]
    what = "; ".join(says)
    return snapshot.verdict(Ending.HUNG, what, places, places[0], notes=notes, cycle=cycles[0])


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
    if any(snapshot.states[rank].status.is_unreachable for rank in absent):
        return None
    elsewhere = [rank for rank in absent if snapshot.states[rank].status is Ending.ELSEWHERE]
    call = next(iter(joined.values()))
    # Ranks that run elsewhere have joined the world, for else nobody would have come so far.
    is_done = call.name == "init_process_group" or all(
        each_call.left for each_call in joined.values()
    )
    if len(elsewhere) == len(absent) and (is_done or not snapshot.waiting):
        return None
    computing = [rank for rank in absent if rank in snapshot.computing or rank in elsewhere]
    if computing and not ended:
        has = "has" if len(computing) == 1 else "have"
        what = f"{ranks(computing)} {has} not joined {numbered(call)}"
        processes = {rank: snapshot.states[rank].process for rank in computing}
        notes = [f"rank {rank} is {which}" for rank, which in processes.items() if which]
        return _verdict(snapshot, Ending.SLOW, what, sequence, seq, computing, notes)
    what = _never_joined(sequence, seq, absent)
    return _verdict(snapshot, Ending.HUNG, what, sequence, seq, _blamed(snapshot, joined, absent))


def _blamed(snapshot: Snapshot, joined: Collection[int], absent: list[int]) -> tuple[int, ...]:
    return suspects(snapshot) or minority({rank: rank in joined for rank in (*joined, *absent)})


def _verdict(
    snapshot: Snapshot,
    kind: Ending,
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
    if snapshot.states[rank].status.is_over:
        return True
    is_own = any(sequence is one for one in snapshot.matching.sequences.values())
    return is_own and rank in snapshot.matching.destroyed


def came_late(snapshot: Snapshot) -> Verdict | None:
    """All joined a collective, but one so late that another had given up, and ended for it."""
    calls: dict[int, Call] = snapshot.matching.given_up
    ended = [
        call
        for rank, call in calls.items()
        if call.error and snapshot.states[rank].status is Ending.RAISED
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
    return snapshot.verdict(Ending.SLOW, what, late.values(), first, calls, [note])


def not_met(snapshot: Snapshot) -> Verdict | None:
    """A message of which one end waits for the other, in vain."""

    def lost_others(call: Call) -> bool:
        peer = call.peer
        return peer in snapshot.inside and snapshot.states[peer].status is Ending.RAISED

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
    running = [other for other in missing if not states[other].status.is_over]
    # A rank that takes what comes from anybody may be a server, which its launcher will end.
    may_go_on = running or call.peer is None
    if not missing or (may_go_on and not snapshot.stalled):
        return None
    computing = [other for other in running if other in snapshot.computing]
    kind, blamed = Ending.SLOW, tuple(computing)
    if not computing:
        kind, blamed = Ending.HUNG, suspects(snapshot) or tuple(sorted((rank, *missing)))
    who = f"{ranks(missing)} to receive its message"
    if kind_of(call) in RECEIVES:
        who = f"a message from {ranks(missing)}"
    guilty = map(snapshot.place, blamed)
    return snapshot.verdict(kind, f"rank {rank} waits for {who}", guilty, call)


def left_over(snapshot: Snapshot) -> Verdict | None:
    """All ranks have ended, or nothing moves: what has still no counterpart never got one."""
    if any(
        not (state.status.is_over or state.status.is_out_of_sight)
        for state in snapshot.states.values()
    ):
        return _nothing_moves(snapshot)
    for matching in (snapshot.matching, snapshot.c10d):
        for sequence, seq in matching.waiting():
            if (verdict := _never_completed(snapshot, sequence, seq)) is not None:
                return verdict
    return _unmatched_message(snapshot)


def _nothing_moves(snapshot: Snapshot) -> Verdict | None:
    if not snapshot.stalled or not snapshot.inside or snapshot.computing:
        return None
    # Whoever waits for others tells nothing.
    last = [call for rank, call in snapshot.inside.items() if not snapshot.waits_for(rank)]
    waits = "waits" if len(last) == 1 else "wait"
    kinds = {(call.group, call.seq, kind_of(call)) for call in last}
    where = f" in {numbered(last[0])}" if len(kinds) == 1 and last[0].seq is not None else ""
    what = f"{ranks(call.rank for call in last)} {waits}{where}, and nothing moves"
    came = [call.entered for call in last if call.name == "init_process_group"]
    apart = (max(came) - min(came)) / 1e9 if len(came) == len(last) > 0 else 0.0
    return snapshot.verdict(Ending.HUNG, what, () if snapshot.not_judged() else last, apart=apart)


def _never_completed(snapshot: Snapshot, sequence: Sequence, seq: int) -> Verdict | None:
    """A collective that some ranks never joined."""
    joined = sequence.pending[seq]
    if (difference := compare(joined)) is not None:
        return mismatch(snapshot, difference)
    states = snapshot.states
    absent = [rank for rank in sequence.absent(seq) if not states[rank].status.is_out_of_sight]
    # If it raised in all ranks, these were told, and went on.
    if not absent or all(call.error for call in joined.values()):
        return None
    call = next(iter(joined.values()))
    blamed = _blamed(snapshot, joined, absent)
    guilty = [joined.get(rank) or snapshot.place(rank) for rank in blamed]
    what = f"{ranks(absent)} never joined {numbered(call)}"
    return snapshot.verdict(Ending.MISMATCH, what, guilty, call, joined, field="call")


def _unmatched_message(snapshot: Snapshot) -> Verdict | None:
    states = snapshot.states
    for call in snapshot.matching.messages.unmatched():
        if not snapshot.matching.knows_messages_of(call):
            continue
        if call.peer in states and states[call.peer].status.is_out_of_sight:
            continue
        if call.name in RECEIVES and states[call.rank].unseen:  # it served others to the end
            continue
        guilty = (call, snapshot.place(call.peer)) if call.peer in states else (call,)
        what = f"no rank received the message of rank {call.rank}"
        if call.name in RECEIVES:
            what = f"no rank sent the message for which rank {call.rank} waited"
        return snapshot.verdict(
            Ending.MISMATCH, what, guilty, call, {call.rank: call}, field="call"
        )
    return None
