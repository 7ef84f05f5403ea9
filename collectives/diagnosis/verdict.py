"""What every rank called -> a verdict: what went wrong, which ranks are to blame, and at which line. Pure: it starts nothing."""

import dataclasses
import re
from collections.abc import Iterable
from dataclasses import dataclass

from collectives.diagnosis.agreement import Difference, compare, minority
from collectives.diagnosis.hints import Hint
from collectives.diagnosis.matching import Matching, Sequence, out_of_step
from collectives.diagnosis.text import place, ranks, told, write
from collectives.diagnosis.waits import find_cycle, kind_of, waits_for
from collectives.recording.call import GROUPS, POINT_TO_POINT, Call

# What an exception says when it is another rank that is gone, or that did not come: the cause is elsewhere.
_LOST = re.compile(
    r"closed by peer|reset by peer|connection refused|broken pipe|timed? ?out|timeout|remote (process|worker)|recvValue|sendBytes"
    r"|failed to (recv|connect)|not all ranks|failed to pass|LaunchError|ChildFailedError|ProcessRaised|ProcessExited",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class State:
    """`status`: running, returned, raised, died. `text`: its exception, or how it died. `where`: file, line, function.

    `in_torch`: its main thread is inside torch, below that line.
    """

    status: str = "running"
    text: str = ""
    where: tuple[str, int, str] = ("", 0, "")
    at: int = 0
    in_torch: bool = False


@dataclass(frozen=True)
class Verdict:
    """`kind`: ok, hang, mismatch, raised, died, slow, not-distributed, partial. `guilty`: the calls to blame; of a rank that is in
    no call, its place, with an empty name. `lines`: by rank, what it does and where."""

    kind: str
    says: str
    guilty: tuple[Call, ...] = ()
    cycle: tuple[int, ...] = ()
    group: str | None = None
    seq: int | None = None
    field: str | None = None
    gives_up: float | None = None  # the ranks wait no longer than so many seconds, and may have a plan for that
    lines: dict[int, tuple[str, str]] = dataclasses.field(default_factory=dict)
    hints: tuple[Hint, ...] = ()


def diagnose(calls: Iterable[Call], states: dict[int, State] | None = None, world_size: int = 0, stalled: bool = True) -> Verdict:
    """The verdict on a program of which these calls are known. `stalled`: nothing has moved for as long as one may wait."""
    return judge(Matching(calls), states or {}, world_size, stalled)


def judge(matching: Matching, states: dict[int, State], world_size: int, stalled: bool, native: Matching | None = None) -> Verdict:
    """The same for calls that are put together already. `native`: the collectives that torch tells of, from C++ too."""
    numbers = sorted({*matching.last, *states, *range(world_size)})
    if not numbers:
        return Verdict("not-distributed", "not-distributed: no process called torch.distributed")
    scene = Scene(matching, native or Matching(), {rank: states.get(rank, State()) for rank in numbers}, stalled)
    for find in (_differing, _failed, _crossed_tags, _circular, _not_joined, _not_met, _left_over):
        if (verdict := find(scene)) is not None:
            return verdict
    return scene.verdict("ok", f"ok: {ranks(numbers)}: all {matching.matched} collectives and messages fitted")


class Scene:
    """All that is known at one moment."""

    def __init__(self, matching: Matching, native: Matching, states: dict[int, State], stalled: bool):
        self.matching = matching
        self.native = native
        self.states = states
        self.stalled = stalled
        self.inside = {rank: call for rank in states if (call := self._inside(rank)) is not None}
        self.computing = [rank for rank, state in states.items() if state.status == "running" and rank not in self.inside]

    def _inside(self, rank: int) -> Call | None:
        """The call in which a rank waits, or in which it lost the others."""
        state, last = self.states[rank], self.matching.last.get(rank)
        if state.status in ("returned", "died"):
            return None
        if opened := self.matching.open.get(rank):
            return opened[max(opened)]
        if state.status == "raised":
            lost = [one for one in (last, self.native.last.get(rank)) if one and (one.error or one.line == state.where[1])]
            return lost[0] if lost and is_lost(state.text) else None
        under_way = self.native.open.get(rank, {}).values()
        return next((call for call in under_way if state.in_torch or (call.file, call.line) == state.where[:2]), None)

    def place(self, rank: int) -> Call:
        """What stands for a rank: its call, or where it is, or its last call."""
        if rank in self.inside:
            return self.inside[rank]
        file, line, function = self.states[rank].where
        last = self.matching.last.get(rank)
        if last is None or last.name in GROUPS:
            last = self.native.last.get(rank, last)
        return last if not file and last is not None else Call(rank, -1, "", file=file, line=line, function=function)

    def line(self, rank: int, call: Call | None = None) -> tuple[str, str]:
        """What a rank does, and where."""
        state = self.states.get(rank, State())
        call = call or self.inside.get(rank)
        if call is not None:
            return told(call) if call.left is not None else f"in {told(call)}", place(call)
        here = self.place(rank)
        doing = {
            "returned": "has returned",
            "running": state.text or ("computes" if here.file else "has made no call"),
            "died": state.text or "died",
        }
        doing["raised"] = f"raised {state.text}"[:90]
        if here.name == "init_process_group":  # as good as nothing: it may be the launcher's
            return doing[state.status], ""
        return doing[state.status] + (f", last in {told(here)}" if here.name else ""), place(here)

    def verdict(
        self, kind: str, headline: str, calls: dict[int, Call] | None = None, notes: Iterable[str] = (), **fields
    ) -> Verdict:
        limits = [call.timeout for call in fields.get("guilty", ()) if call.timeout is not None and call.left is None]
        fields["gives_up"] = min(limits, default=None)
        lines = {rank: self.line(rank, (calls or {}).get(rank)) for rank in self.states}
        return Verdict(kind, headline if kind == "ok" else write(headline, lines, list(notes)), lines=lines, **fields)


def is_lost(text: str) -> bool:
    """Whether an exception only tells that another rank is gone or did not come."""
    return bool(_LOST.search(text))


def _differing(scene: Scene) -> Verdict | None:
    for matching in (scene.matching, scene.native):
        if matching.difference is not None:
            return _mismatch(scene, matching.difference)
    return None


def _mismatch(scene: Scene, found: Difference) -> Verdict:
    one = next(iter(found.calls.values()))
    rest = [rank for rank in found.calls if rank not in found.guilty]
    what = f"{found.field} of {kind_of(one)} #{one.seq} of group {one.group}"
    if kind_of(one) in POINT_TO_POINT:
        what = f"{found.field} of the two ends of a message"
    elif found.field == "call":
        what = f"different calls as #{one.seq} of group {one.group}"
    whom = f"{ranks(found.guilty)} against {ranks(rest)}" if rest else f"{ranks(found.guilty)} disagree"
    guilty = tuple(found.calls[rank] for rank in found.guilty)
    headline = f"mismatch: {what}: {' '.join(whom.split())}"
    return scene.verdict(
        "mismatch",
        headline,
        found.calls,
        guilty=guilty,
        group=one.group,
        seq=one.seq if one.name != "wait" else None,
        field=found.field,
    )


def _failed(scene: Scene) -> Verdict | None:
    """A rank that raised or died of its own accord; not one that only lost the others."""
    failed = {
        rank: state
        for rank, state in scene.states.items()
        if state.status == "died" or (state.status == "raised" and not is_lost(state.text))
    }
    if not failed:
        return None
    # Who died while waiting for others was more likely ended because of them.
    rank = min(failed, key=lambda rank: (failed[rank].status == "died" and bool(scene.matching.open.get(rank)), failed[rank].at))
    state, here = failed[rank], scene.place(rank)
    headline = f"{state.status}: rank {rank} {state.text}" if state.status == "died" else f"raised: rank {rank}: {state.text}"
    return scene.verdict(state.status, headline, guilty=(here,), group=here.group if here.name else None, seq=here.seq)


def _crossed_tags(scene: Scene) -> Verdict | None:
    """A sender and a receiver that wait for each other with different tags."""
    for rank, call in scene.inside.items():
        other = scene.inside.get(call.peer) if call.peer is not None else None
        if other is None or other.peer != rank or "send" not in kind_of(call) or "recv" not in kind_of(other):
            continue
        if call.tag != other.tag and waits_for(scene.matching, call) and waits_for(scene.matching, other):
            return _mismatch(scene, Difference("tag", tuple(sorted((rank, other.rank))), {rank: call, other.rank: other}))
    return None


def _circular(scene: Scene) -> Verdict | None:
    edges = {
        rank: [other for other in waits_for(scene.matching, call) if other in scene.inside] for rank, call in scene.inside.items()
    }
    cycle = find_cycle(edges)
    if not cycle:
        return None
    circle = f"-> circular wait: {' -> '.join(map(str, (*cycle, cycle[0])))}"
    for rank in cycle:
        call = scene.inside[rank]
        if call.seq is not None and (verdict := _never_joined(scene, scene.matching.of(call), call.seq, cycle, [circle])):
            return verdict
    guilty = tuple(scene.inside[rank] for rank in sorted(cycle))
    return scene.verdict(
        "hang", f"hang: {ranks(cycle)} wait for each other", notes=[circle], guilty=guilty, cycle=cycle, group=guilty[0].group
    )


def _not_joined(scene: Scene) -> Verdict | None:
    """A collective in which some wait for others: who are in another call, have ended, or compute."""
    for matching in (scene.matching, scene.native):
        for sequence, seq in matching.waiting():
            waits = any(rank in scene.inside for rank in sequence.pending[seq])
            if waits and (verdict := _never_joined(scene, sequence, seq)) is not None:
                return verdict
    return None


def _never_joined(scene: Scene, sequence: Sequence, seq: int, cycle: tuple = (), notes: Iterable[str] = ()) -> Verdict | None:
    joined, absent = sequence.pending.get(seq, {}), sequence.absent(seq)
    absent = [rank for rank in absent if rank in scene.states]
    ended = [rank for rank in absent if scene.states[rank].status != "running"]
    if not joined or not absent or not (scene.stalled or ended or cycle):
        return None
    if (difference := compare(joined)) is not None:
        return _mismatch(scene, difference)
    call = next(iter(joined.values()))
    what = f"{call.name} #{seq} of group {call.group}"
    computing = [rank for rank in absent if rank in scene.computing]
    if computing and not ended and not cycle:
        kind, blamed, says = "slow", computing, f"{ranks(computing)} has not joined {what}"
    else:
        kind, blamed = "hang", minority({rank: rank in joined for rank in (*joined, *absent)})
        says = f"only {ranks(joined)} joined {what}" if len(absent) > len(joined) else f"{ranks(absent)} never joined {what}"
    places = {rank: joined.get(rank) or scene.place(rank) for rank in blamed}
    step = out_of_step(sequence)
    if step is not None and set(step.guilty) <= set(places):
        places |= {rank: step.calls[rank] for rank in step.guilty}
        there = {place(one): [rank for rank in step.calls if place(step.calls[rank]) == place(one)] for one in step.calls.values()}
        lines = [f"{' '.join(ranks(numbers).split())} at {where}" for where, numbers in there.items()]
        notes = [*notes, f"out of step since #{next(iter(step.calls.values())).seq}: {'; '.join(lines)}"]
    guilty = tuple(places[rank] for rank in sorted(places))
    return scene.verdict(
        kind, f"{kind}: {' '.join(says.split())}", notes=notes, guilty=guilty, cycle=cycle, group=call.group, seq=seq
    )


def _not_met(scene: Scene) -> Verdict | None:
    """A message of which one end waits for the other, in vain."""
    for rank, call in scene.inside.items():
        if kind_of(call) not in POINT_TO_POINT:
            continue
        missing = waits_for(scene.matching, call) or (
            [] if call.peer is not None or scene.matching.sent_to(call) else list(scene.states)
        )
        missing = [other for other in missing if other in scene.states and other != rank]
        running = [other for other in missing if scene.states[other].status == "running"]
        if not missing or (running and not scene.stalled):
            continue
        computing = [other for other in running if other in scene.computing]
        who = f"from {ranks(missing)}" if "recv" in kind_of(call) else f"to {ranks(missing)}"
        if computing:
            guilty, kind = tuple(scene.place(other) for other in computing), "slow"
        else:
            guilty, kind = tuple(scene.place(other) for other in sorted((rank, *missing))), "hang"
        headline = f"{kind}: rank {rank} waits for a message {' '.join(who.split())}"
        return scene.verdict(kind, headline, guilty=guilty, group=call.group)
    return None


def _left_over(scene: Scene) -> Verdict | None:
    """All ranks have ended: what has still no counterpart never got one."""
    if any(state.status == "running" for state in scene.states.values()):
        if scene.stalled and scene.inside and not scene.computing:
            guilty = tuple(scene.inside.values())
            return scene.verdict("hang", f"hang: {ranks(scene.inside)} waits, and nothing moves", guilty=guilty)
        return None
    for matching in (scene.matching, scene.native):
        for sequence, seq in matching.waiting():
            joined, absent = sequence.pending[seq], sequence.absent(seq)
            if absent and not all(call.error for call in joined.values()):  # else they were told, and went on
                call = next(iter(joined.values()))
                blamed = minority({rank: rank in joined for rank in (*joined, *absent)})
                guilty = tuple(joined.get(rank) or scene.place(rank) for rank in blamed)
                headline = f"mismatch: {' '.join(ranks(absent).split())} never joined {call.name} #{seq} of group {call.group}"
                return scene.verdict("mismatch", headline, joined, guilty=guilty, group=call.group, seq=seq, field="call")
    for call in [] if scene.matching.lossy else scene.matching.unmatched():
        both = tuple(one for one in (call, scene.place(call.peer) if call.peer in scene.states else None) if one)
        headline = f"mismatch: the message of rank {call.rank} has no other end"
        return scene.verdict("mismatch", headline, {call.rank: call}, guilty=both, group=call.group, field="call")
    return None
