"""All that is known of the ranks at one moment, and the verdict that is given on it. Pure."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from collectives.diagnosis.rules.matching import Matching, kind_of, waits_for
from collectives.diagnosis.rules.rank_state import State
from collectives.diagnosis.rules.report import format_call, location, what_torch_does, write
from collectives.recording.call import Call
from collectives.recording.ending import Ending
from collectives.recording.lost_peer import is_lost
from collectives.semantics.calls import GROUPS, POINT_TO_POINT
from collectives.words import ranks


@dataclass(frozen=True)
class Hint:
    """A risky call.

    risk: what its rank did.
    cure: what may happen because of it, and what to do.
    """

    call: Call
    risk: str
    cure: str


@dataclass(frozen=True)
class Verdict:
    """What is wrong, and who is to blame.

    `what`: what is wrong, in words; `notes`: what else is to be said of it. `guilty`: the calls to
    blame; for a rank that is in no call, its place, with an empty name. `lines`: by rank, what it
    does and where.
    `machines`: by rank, its host name, as far as it is known. `seq`: the number of a call as
    reports show it. `gives_up`: the first rank that waits gives up after so many seconds; the
    program may handle that. `apart`: where all are in init_process_group, how many seconds after
    the first the last one came. `earlier`: the verdicts on earlier attempts of an elastic job.
    """

    kind: Ending
    what: str
    guilty: tuple[Call, ...] = ()
    cycle: tuple[int, ...] = ()
    group: str | None = None
    seq: int | None = None
    field: str | None = None
    gives_up: float | None = None
    apart: float = 0.0
    lines: dict[int, tuple[str, str]] = dataclasses.field(default_factory=dict)
    machines: dict[int, str] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()
    hints: tuple[Hint, ...] = ()
    earlier: tuple["Verdict", ...] = ()

    @property
    def headline(self) -> str:
        return f"{self.kind.verdict}: {self.what}"

    @property
    def says(self) -> str:
        """All of it as text. Where nothing is wrong, what each rank does says nothing."""
        lines = {} if self.kind.is_good or self.kind is Ending.PARTIAL else self.lines
        return write(self.headline, lines, self.notes)


class Snapshot:
    """All that is known at one moment.

    `c10d`: the collectives that torch's Flight Recorder noted, those from C++ too. `inside`: by
    rank, the call in which it waits or lost others. `computing`: the ranks that run and are in no
    call. `waiting`: those that run and are in one. `stalled`: nothing has moved for so long that
    the program hangs.
    """

    def __init__(self, matching: Matching, c10d: Matching, states: dict[int, State], stalled: bool):
        self.matching = matching
        self.c10d = c10d
        self.states = states
        self.stalled = stalled
        self.inside = {rank: call for rank in states if (call := self._inside(rank)) is not None}
        running = [rank for rank, state in states.items() if state.status is Ending.RUNNING]
        self.computing = [rank for rank in running if rank not in self.inside]
        self.waiting = [rank for rank in running if rank in self.inside]

    def _inside(self, rank: int) -> Call | None:
        state = self.states[rank]
        if state.status is Ending.RETURNED or state.status is Ending.DIED:
            return None
        if (call := self._open_call(rank)) is not None:
            return call
        if state.status is Ending.RAISED:
            return self._lost_in(rank) if is_lost(state.text) else None
        for call in self.c10d.open.get(rank, {}).values():
            if state.in_torch or (call.file, call.line) == state.where[:2]:
                return call
        return self._queued(rank) if self.stalled else None

    def _queued(self, rank: int) -> Call | None:
        """The first call that others lack and that its GPU waits in.

        On a GPU the rank leaves such a call at once, and waits where it reads the result.
        """
        queued = [
            calls[rank]
            for sequence, seq in self.matching.waiting()
            if rank in (calls := sequence.pending[seq]) and sequence.absent(seq)
        ]
        queued += [call for call in self.matching.messages.unmatched() if call.rank == rank]
        on_gpu = [call for call in queued if call.device == "cuda" and not call.error]
        return min(on_gpu, key=lambda call: call.number, default=None)

    def _open_call(self, rank: int) -> Call | None:
        """The last call that it is inside, of those that Python made."""
        opened = self.matching.open.get(rank)
        return opened[max(opened)] if opened else None

    def _lost_in(self, rank: int) -> Call | None:
        """The call in which a rank lost others: it raised, or stands where the rank raised."""
        for matching in (self.matching, self.c10d):
            call = matching.last.get(rank)
            if call is None:
                continue
            if call.error or call.is_functional or call.line == self.states[rank].where[1]:
                return call
        return None

    def waits_for(self, rank: int) -> list[int]:
        """The ranks for which the call that it is inside waits.

        For a call from C++ that is known only when nothing moves: torch's record lags behind, and a
        rank does not wait at once for all that is under way. So it is where messages were missed.
        """
        call = self.inside[rank]
        matching = self.matching_of(call)
        if call.device == "cuda" and kind_of(call) in POINT_TO_POINT and not self.stalled:
            return []  # the first message connects two ranks, which takes time
        if self.stalled and kind_of(call) in GROUPS and call.seq is not None:
            return list(matching.of(call).absent(call.seq))
        if kind_of(call) in POINT_TO_POINT and not matching.knows_messages_of(call):
            return [call.peer] if self.stalled and call.peer is not None else []
        return waits_for(matching, call) if self.stalled or matching is self.matching else []

    def is_held_up(self, rank: int) -> bool:
        """Whether the rank waits for others, or may do so: that it is absent says nothing of it."""
        if rank not in self.inside:
            return False
        call = self.inside[rank]
        return bool(self.waits_for(rank) or self._unknown(call)) or self._is_complete(call)

    def _is_complete(self, call: Call) -> bool:
        """Whether all have joined it: then torch or the network holds it up, and none of them."""
        if call.seq is None or call.left is not None:
            return False
        sequence = self.matching_of(call).of(call)
        return not (sequence.absent(call.seq) or sequence.unknown(call.seq))

    def _unknown(self, call: Call) -> set[int]:
        """The ranks of which it is not known whether they made their call to this one."""
        matching = self.matching_of(call)
        if kind_of(call) in POINT_TO_POINT:
            is_known = matching.knows_messages_of(call) or self.waits_for(call.rank)
            return set() if is_known else set(matching.since)
        return set() if call.seq is None else set(matching.of(call).unknown(call.seq))

    def matching_of(self, call: Call) -> Matching:
        """Where the call is counted: one from C++ is in a count of its own."""
        known = (self.matching.last.get(call.rank), *self.matching.open.get(call.rank, {}).values())
        return self.matching if any(call is one for one in known) else self.c10d

    def place(self, rank: int) -> Call:
        """What stands for a rank: its call, or where it is, or its last call."""
        if rank in self.inside:
            return self.inside[rank]
        if (call := self._died_in(rank)) is not None:
            return call
        if self.states[rank].status is Ending.RUNNING and rank in self.matching.destroyed:
            return self.matching.destroyed[rank]
        file, line, function = self.states[rank].where
        last = self.matching.last.get(rank)
        if last is None or last.name in GROUPS:
            last = self.c10d.last.get(rank, last)
        if not file and last is not None:
            return last
        does = self.states[rank].torch_does
        return Call("", rank=rank, file=file, line=line, function=function, torch_does=does)

    def _died_in(self, rank: int) -> Call | None:
        if self.states[rank].status is not Ending.DIED:
            return None
        last = self.matching.last.get(rank)
        # Of what torch waits for, nobody else sees the end.
        is_waited_for = last is not None and last.is_functional
        return self._open_call(rank) or (last if is_waited_for else None)

    def line(self, rank: int, call: Call | None = None) -> tuple[str, str]:
        """What a rank does, and where, for the report. `call`: the one to tell of it."""
        state = self.states.get(rank, State())
        doing, where = self._line(rank, state, call)
        return doing, f"{where} on {state.machine}".strip() if state.machine else where

    def _line(self, rank: int, state: State, call: Call | None) -> tuple[str, str]:
        call = call or self.inside.get(rank)
        if call is None:
            return self._line_without_call(rank, state)
        if call.left is not None or state.status is Ending.RETURNED:
            return format_call(call), location(call)
        stopped = "stopped " if state.stopped else ""
        return f"{stopped}in {format_call(call)}", location(call)

    def _line_without_call(self, rank: int, state: State) -> tuple[str, str]:
        here = self.place(rank)
        if state.status is Ending.RAISED:
            doing = f"raised {state.text}"[:90]
        elif state.status is Ending.RUNNING and not state.text:
            doing = "computing" if here.file else "no call yet"
        else:
            doing = state.text or state.status
        if here.name == "init_process_group":  # as good as no call: it may be the launcher's
            return doing, ""
        if here is self._died_in(rank):
            doing += f" in {format_call(here)}"
        elif here.name:
            doing += f", last in {format_call(here)}"
        elif state.is_old and here.file:
            doing += ", last seen"
        return doing, location(here)

    def not_judged(self) -> list[str]:
        unknown = {rank for call in self.inside.values() for rank in self._unknown(call)}
        return [f"not judged: calls of {ranks(unknown)} are no longer known"] if unknown else []

    def verdict(
        self,
        kind: Ending,
        what: str,
        guilty: Iterable[Call] = (),
        about: Call | None = None,
        calls: dict[int, Call] | None = None,
        notes: Iterable[str] = (),
        **fields,
    ) -> Verdict:
        """`about`: a call of the group. `calls`: by rank, those to tell of. `fields`: Verdict's."""
        if about is not None:
            fields |= {"group": about.group, "seq": about.shown_seq}
        guilty = tuple(guilty)
        # If one of these gives up, it may set the others free.
        waiting = [call for call in (*guilty, *self.inside.values()) if call.left is None]
        limits = [call.timeout for call in waiting if call.timeout is not None]
        lines = {rank: self.line(rank, (calls or {}).get(rank)) for rank in self.states}
        machines = {rank: state.machine for rank, state in self.states.items() if state.machine}
        fields |= {"gives_up": min(limits, default=None), "lines": lines, "machines": machines}
        if kind is not Ending.OK:
            shown = {rank: (calls or {}).get(rank) or self.place(rank) for rank in self.states}
            fields["notes"] = (*notes, *what_torch_does(shown.values()), *self.not_judged())
        return Verdict(kind, what, guilty, **fields)
