"""What every rank called -> a verdict: what went wrong, which ranks are to blame, and at which line. Pure: it starts nothing."""

from collections.abc import Iterable

from collectives.diagnosis.rules import failures
from collectives.diagnosis.rules.compare import Difference, compare, minority
from collectives.diagnosis.rules.matching import Matching, Sequence, out_of_step
from collectives.diagnosis.rules.report import against, join_as, locations, ranks
from collectives.diagnosis.rules.snapshot import LEFT, NOT_ENDED, Scene, State, Verdict
from collectives.diagnosis.rules.wait_graph import find_cycle, kind_of
from collectives.recording.call import Call
from collectives.spec.calls import POINT_TO_POINT, RECEIVES, SENDS


def diagnose(
    calls: Iterable[Call],
    states: dict[int, State] | None = None,
    world_size: int = 0,
    stalled: bool = True,
) -> Verdict:
    """The verdict on a program of which these calls are known. `stalled`: nothing has moved for as long as one may wait."""
    return judge(Matching(calls), states or {}, world_size, stalled)


def judge(
    matching: Matching,
    states: dict[int, State],
    world_size: int,
    stalled: bool,
    native: Matching | None = None,
) -> Verdict:
    """The same for calls that are put together already. `native`: the collectives that torch tells of, from C++ too."""
    numbers = sorted({*matching.last, *states, *range(world_size)})
    if not numbers:
        return Verdict("not-distributed", "not-distributed: no process called torch.distributed")
    scene = Scene(
        matching,
        native or Matching(),
        {rank: states.get(rank, State()) for rank in numbers},
        stalled,
    )
    for find in (
        _differing,
        failures.failed,
        _stopped,
        _same_rank,
        _crossed_tags,
        _circular,
        _not_joined,
        _came_late,
        _not_met,
        failures.left_early,
        _left_over,
        failures.lost,
    ):
        if (verdict := find(scene)) is not None:
            return verdict
    return scene.verdict(
        "ok", f"ok: {ranks(numbers)}: all {matching.matched} collectives and messages fitted"
    )


def _differing(scene: Scene) -> Verdict | None:
    own, native = scene.matching, scene.native
    for matching, found in (
        (own, own.difference),
        (None, failures.aborted(scene)),
        (native, native.difference),
    ):
        if found is not None:
            return _mismatch(
                scene, found, matching and matching.of(next(iter(found.calls.values())))
            )
    return None


def _mismatch(scene: Scene, found: Difference, sequence: Sequence | None = None) -> Verdict:
    """`sequence`: that of the calls, if ranks may have fallen out of step in it before."""
    one = next(iter(found.calls.values()))
    is_message = kind_of(one) in POINT_TO_POINT
    what = f"{found.field} of {kind_of(one)} #{one.seq} of group {one.group}"
    if is_message:
        what = f"{found.field} of the two ends of a message"
    elif found.field == "call":
        what = f"different calls as #{one.seq} of group {one.group}"
    places = {rank: found.calls[rank] for rank in found.guilty}
    notes = (
        []
        if sequence is None or is_message or found.field == "order"
        else _out_of_step(sequence, places, before=one.seq)
    )
    headline = f"mismatch: {what}: {against(found.guilty, found.calls)}"
    return scene.verdict(
        "mismatch",
        headline,
        found.calls,
        notes,
        guilty=tuple(places.values()),
        group=one.group,
        seq=one.seq if one.name != "wait" else None,
        field=found.field,
    )


def _stopped(scene: Scene) -> Verdict | None:
    """A process that a signal or a debugger holds: whoever waits, waits for it."""
    stopped = [rank for rank, state in scene.states.items() if state.stopped]
    if not stopped or not scene.stalled or not scene.inside:
        return None
    headline = f"hang: {ranks(stopped)} stopped, as by SIGSTOP or a debugger"
    return scene.verdict("hang", headline, guilty=tuple(scene.place(rank) for rank in stopped))


def _same_rank(scene: Scene) -> Verdict | None:
    """Ranks that name, as they join, the rank of another one, so that nobody is who they should be."""
    joining = {
        rank: call for rank, call in scene.inside.items() if call.name == "init_process_group"
    }
    named = {rank: rank if call.peer is None else call.peer for rank, call in joining.items()}
    wrong = [
        rank
        for rank in joining
        if named[rank] != rank and list(named.values()).count(named[rank]) > 1
    ]
    if not wrong or not scene.stalled:
        return None
    headline, guilty = (
        join_as(wrong, {named[rank] for rank in wrong}),
        tuple(joining[rank] for rank in wrong),
    )
    return scene.verdict("hang", headline, guilty=guilty, group=guilty[0].group, seq=guilty[0].seq)


def _crossed_tags(scene: Scene) -> Verdict | None:
    """A sender and a receiver that wait for each other with different tags."""
    for rank, call in scene.inside.items():
        other = scene.inside.get(call.peer) if call.peer is not None else None
        if (
            other is None
            or other.peer != rank
            or kind_of(call) not in SENDS
            or kind_of(other) not in RECEIVES
        ):
            continue
        if call.tag != other.tag and scene.waits_for(rank) and scene.waits_for(other.rank):
            return _mismatch(
                scene,
                Difference(
                    "tag", tuple(sorted((rank, other.rank))), {rank: call, other.rank: other}
                ),
            )
    return None


def _circular(scene: Scene) -> Verdict | None:
    edges = {
        rank: [other for other in scene.waits_for(rank) if other in scene.inside]
        for rank in scene.inside
    }
    cycle = find_cycle(edges)
    if not cycle:
        return None
    circle = f"-> circular wait: {' -> '.join(map(str, (*cycle, cycle[0])))}"
    found = []
    for rank in cycle:
        call = scene.inside[rank]
        sequence = scene.matching_of(call).of(call)
        if call.seq is not None and (
            verdict := _never_joined(scene, sequence, call.seq, cycle, [circle])
        ):
            found.append(verdict)
    if found:  # each is true; the one that blames fewest ranks says most
        return min(found, key=lambda verdict: len(verdict.guilty))
    guilty = tuple(scene.inside[rank] for rank in sorted(cycle))
    return scene.verdict(
        "hang",
        f"hang: {ranks(cycle)} wait for each other",
        notes=[circle],
        guilty=guilty,
        cycle=cycle,
        group=guilty[0].group,
    )


def _not_joined(scene: Scene) -> Verdict | None:
    """A collective in which some wait for others: who are in another call, have ended, or compute."""
    for matching in (scene.matching, scene.native):
        for sequence, seq in matching.waiting():
            waits = any(rank in scene.inside for rank in sequence.pending[seq])
            if waits and (verdict := _never_joined(scene, sequence, seq)) is not None:
                return verdict
    return None


def _never_joined(
    scene: Scene, sequence: Sequence, seq: int, cycle: tuple = (), notes: Iterable[str] = ()
) -> Verdict | None:
    joined, absent = sequence.pending.get(seq, {}), sequence.absent(seq)
    absent = [rank for rank in absent if rank in scene.states]
    # What C++ called before a rank destroyed the group may be known for others and not yet for that one.
    destroyed = (
        scene.matching.destroyed
        if any(sequence is one for one in scene.matching.sequences.values())
        else {}
    )
    ended = [
        rank for rank in absent if scene.states[rank].status not in NOT_ENDED or rank in destroyed
    ]
    if not joined or not absent or not (scene.stalled or ended or cycle):
        return None
    if (difference := compare(joined)) is not None:
        return _mismatch(scene, difference)
    call = next(iter(joined.values()))
    what = f"{call.name} #{seq} of group {call.group}"
    computing = [
        rank
        for rank in absent
        if rank in scene.computing or scene.states[rank].status == "elsewhere"
    ]
    if not scene.waiting and all(scene.states[rank].status == "elsewhere" for rank in absent):
        return None
    if computing and not ended and not cycle:
        kind, blamed, says = (
            "slow",
            computing,
            f"{ranks(computing)} {'has' if len(computing) == 1 else 'have'} not joined {what}",
        )
    else:
        kind, blamed = "hang", minority({rank: rank in joined for rank in (*joined, *absent)})
        says = (
            f"only {ranks(joined)} joined {what}"
            if len(absent) > len(joined)
            else f"{ranks(absent)} never joined {what}"
        )
    places = {rank: joined.get(rank) or scene.place(rank) for rank in blamed}
    notes = [*notes, *_out_of_step(sequence, places, before=seq)]
    guilty = tuple(places[rank] for rank in sorted(places))
    return scene.verdict(
        kind, f"{kind}: {says}", notes=notes, guilty=guilty, cycle=cycle, group=call.group, seq=seq
    )


def _out_of_step(sequence: Sequence, places: dict[int, Call], before: int) -> list[str]:
    """If ranks fell out of step before that collective, say where, and put that into the places of those who are to blame."""
    step = out_of_step(sequence)
    since = before if step is None else next(iter(step.calls.values())).seq
    if since >= before or not set(step.guilty) <= set(places):
        return []
    places |= {rank: step.calls[rank] for rank in step.guilty}
    return [f"out of step since #{since}: {locations(step.calls)}"]


def _came_late(scene: Scene) -> Verdict | None:
    """All joined a collective, but one so late that another had given up, and ended for it."""
    calls = scene.matching.given_up
    ended = [
        call for rank, call in calls.items() if call.error and scene.states[rank].status == "raised"
    ]
    if not ended:
        return None
    first = min(ended, key=lambda call: call.left)
    late = {rank: call for rank, call in calls.items() if call.entered > first.left}
    if not late:
        return None
    begun = (min(call.entered for call in late.values()) - first.entered) / 1e9
    what = f"{first.name} #{first.seq} of group {first.group}"
    headline = f"slow: {ranks(late)} came to {what} when rank {first.rank} had given up"
    note = f"rank {first.rank} gave up after {(first.left - first.entered) / 1e9:.1f} s; the other side came after {begun:.1f} s"
    return scene.verdict(
        "slow",
        headline,
        calls,
        [note],
        guilty=tuple(late.values()),
        group=first.group,
        seq=first.seq,
    )


def _not_met(scene: Scene) -> Verdict | None:
    """A message of which one end waits for the other, in vain."""
    # Who waits for one that has lost others in its turn, or raised, tells less than who waits for one that has just returned.
    for rank, call in sorted(
        scene.inside.items(), key=lambda one: _lost_others(scene, one[1].peer)
    ):
        if kind_of(call) not in POINT_TO_POINT:
            continue
        missing = scene.waits_for(rank) or (
            []
            if call.peer is not None or scene.matching.messages.sent_to(call)
            else list(scene.states)
        )
        missing = [other for other in missing if other in scene.states and other != rank]
        running = [other for other in missing if scene.states[other].status in NOT_ENDED]
        # Whoever takes what comes from anybody may be a server, which its launcher will end.
        if not missing or ((running or call.peer is None) and not scene.stalled):
            continue
        computing = [other for other in running if other in scene.computing]
        who = (
            f"a message from {ranks(missing)}"
            if kind_of(call) in RECEIVES
            else f"{ranks(missing)} to receive its message"
        )
        if computing:
            guilty, kind = tuple(scene.place(other) for other in computing), "slow"
        else:
            guilty, kind = tuple(scene.place(other) for other in sorted((rank, *missing))), "hang"
        headline = f"{kind}: rank {rank} waits for {who}"
        return scene.verdict(kind, headline, guilty=guilty, group=call.group)
    return None


def _lost_others(scene: Scene, rank: int | None) -> bool:
    return rank in scene.inside and scene.states[rank].status == "raised"


def _left_over(scene: Scene) -> Verdict | None:
    """All ranks have ended: what has still no counterpart never got one."""
    if any(state.status in ("running", "missing") for state in scene.states.values()):
        if scene.stalled and scene.inside and not scene.computing:
            guilty = tuple(scene.inside.values())
            waits = "waits" if len(guilty) == 1 else "wait"
            return scene.verdict(
                "hang", f"hang: {ranks(scene.inside)} {waits}, and nothing moves", guilty=guilty
            )
        return None
    for matching in (scene.matching, scene.native):
        for sequence, seq in matching.waiting():
            joined, absent = sequence.pending[seq], sequence.absent(seq)
            if (difference := compare(joined)) is not None:
                return _mismatch(scene, difference)
            absent = [rank for rank in absent if scene.states[rank].status != "elsewhere"]
            if absent and not all(
                call.error for call in joined.values()
            ):  # else they were told, and went on
                call = next(iter(joined.values()))
                blamed = minority({rank: rank in joined for rank in (*joined, *absent)})
                guilty = tuple(joined.get(rank) or scene.place(rank) for rank in blamed)
                headline = f"mismatch: {ranks(absent)} never joined {call.name} #{seq} of group {call.group}"
                return scene.verdict(
                    "mismatch",
                    headline,
                    joined,
                    guilty=guilty,
                    group=call.group,
                    seq=seq,
                    field="call",
                )
    unmatched = [] if scene.matching.lossy else scene.matching.messages.unmatched()
    for call in unmatched:
        if call.peer in scene.states and scene.states[call.peer].status == "elsewhere":
            continue
        if (
            call.name in RECEIVES and scene.states[call.rank].text == LEFT
        ):  # it served others to the end
            continue
        both = tuple(
            one
            for one in (call, scene.place(call.peer) if call.peer in scene.states else None)
            if one
        )
        headline = f"mismatch: the message of rank {call.rank} has no other end"
        return scene.verdict(
            "mismatch", headline, {call.rank: call}, guilty=both, group=call.group, field="call"
        )
    return None
