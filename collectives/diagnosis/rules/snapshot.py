"""All that is known of the ranks at one moment, and the verdict that is given on it. Pure."""

import dataclasses
import re
from collections.abc import Iterable
from dataclasses import dataclass

from collectives.diagnosis.rules.hints import Hint
from collectives.diagnosis.rules.matching import Matching
from collectives.diagnosis.rules.report import format_call, location, write
from collectives.diagnosis.rules.wait_graph import waits_for
from collectives.recording.call import Call
from collectives.spec.calls import GROUPS

# What an exception says when it is another rank that is gone, or that did not come: the cause is elsewhere.
_TIMED_OUT = re.compile("timed? ?out", re.IGNORECASE)
_LOST = re.compile(
    rf"{_TIMED_OUT.pattern}|closed by peer|reset by peer|connection refused|broken pipe|remote (process|worker)|recvValue|sendBytes"
    r"|failed to (recv|connect)|not all ranks|failed to pass|LaunchError|ChildFailedError|ProcessRaised|ProcessExited",
    re.IGNORECASE,
)

# How a rank returned that said nothing at its end, and with which its launcher was content.
LEFT = "left by os._exit, or was ended by its launcher"

NOT_ENDED = ("running", "missing", "elsewhere")


@dataclass(frozen=True)
class State:
    """`status`: running, returned, raised, died; missing where no process is known, elsewhere where another machine tells nothing.

    `text`: its exception, or how it died. `where`: file, line, function. `in_torch`: its main thread is in torch, below it.
    """

    status: str = "running"
    text: str = ""
    where: tuple[str, int, str] = ("", 0, "")
    at: int = 0
    in_torch: bool = False
    stopped: bool = False  # by SIGSTOP, say, or a debugger
    is_old: bool = False  # `where` is what it answered last, and it may have gone on since


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
    gives_up: float | None = (
        None  # the ranks wait no longer than so many seconds, and may have a plan for that
    )
    lines: dict[int, tuple[str, str]] = dataclasses.field(default_factory=dict)
    hints: tuple[Hint, ...] = ()


def is_lost(text: str) -> bool:
    """Whether an exception only tells that another rank is gone or did not come."""
    return bool(_LOST.search(text))


def timed_out(text: str) -> bool:
    """Whether another rank did not come in time, which may well be there."""
    return bool(_TIMED_OUT.search(text))


class Scene:
    """All that is known at one moment."""

    def __init__(
        self, matching: Matching, native: Matching, states: dict[int, State], stalled: bool
    ):
        self.matching = matching
        self.native = native
        self.states = states
        self.stalled = stalled
        self.inside = {rank: call for rank in states if (call := self._inside(rank)) is not None}
        self.computing = [
            rank
            for rank, state in states.items()
            if state.status == "running" and rank not in self.inside
        ]
        self.waiting = [rank for rank in self.inside if states[rank].status == "running"]

    def _inside(self, rank: int) -> Call | None:
        """The call in which a rank waits, or in which it lost the others."""
        state, last = self.states[rank], self.matching.last.get(rank)
        if state.status in ("returned", "died"):
            return None
        if opened := self.matching.open.get(rank):
            return opened[max(opened)]
        if state.status == "raised":
            lost = [
                one
                for one in (last, self.native.last.get(rank))
                if one and (one.error or one.line == state.where[1])
            ]
            return lost[0] if lost and is_lost(state.text) else None
        under_way = self.native.open.get(rank, {}).values()
        return next(
            (
                call
                for call in under_way
                if state.in_torch or (call.file, call.line) == state.where[:2]
            ),
            None,
        )

    def waits_for(self, rank: int) -> list[int]:
        """The ranks for which the call that it is inside waits. Of one from C++ that is known only when nothing moves: that it is
        under way need not mean that its rank waits for it, and torch's record lags behind."""
        call, matching = self.inside[rank], self.matching_of(self.inside[rank])
        return waits_for(matching, call) if self.stalled or matching is self.matching else []

    def matching_of(self, call: Call) -> Matching:
        """Where the call is counted: one from C++ in a count of its own."""
        known = (self.matching.last.get(call.rank), *self.matching.open.get(call.rank, {}).values())
        return self.matching if any(call is one for one in known) else self.native

    def place(self, rank: int) -> Call:
        """What stands for a rank: its call, or where it is, or its last call."""
        if rank in self.inside:
            return self.inside[rank]
        if (call := self._died_in(rank)) is not None:
            return call
        if self.states[rank].status == "running" and rank in self.matching.destroyed:
            return self.matching.destroyed[rank]
        file, line, function = self.states[rank].where
        last = self.matching.last.get(rank)
        if last is None or last.name in GROUPS:
            last = self.native.last.get(rank, last)
        return (
            last
            if not file and last is not None
            else Call(rank, -1, "", file=file, line=line, function=function)
        )

    def _died_in(self, rank: int) -> Call | None:
        opened = self.matching.open.get(rank)
        return opened[max(opened)] if opened and self.states[rank].status == "died" else None

    def line(self, rank: int, call: Call | None = None) -> tuple[str, str]:
        """What a rank does, and where."""
        state = self.states.get(rank, State())
        call = call or self.inside.get(rank)
        if call is not None:
            has_left = call.left is not None or state.status == "returned"
            return format_call(
                call
            ) if has_left else f"{'stopped ' * state.stopped}in {format_call(call)}", location(call)
        here = self.place(rank)
        doing = {
            "returned": state.text or "returned",
            "running": state.text or ("computing" if here.file else "no call yet"),
            "died": state.text or "died",
            "missing": state.text,
            "elsewhere": state.text,
        }
        doing["raised"] = f"raised {state.text}"[:90]
        if here.name == "init_process_group":  # as good as nothing: it may be the launcher's
            return doing[state.status], ""
        last = (
            f", last in {format_call(here)}"
            if here.name
            else ", last seen"
            if state.is_old and here.file
            else ""
        )
        if here is self._died_in(rank):
            last = f" in {format_call(here)}"
        return doing[state.status] + last, location(here)

    def verdict(
        self,
        kind: str,
        headline: str,
        calls: dict[int, Call] | None = None,
        notes: Iterable[str] = (),
        **fields,
    ) -> Verdict:
        waiting = [
            *fields.get("guilty", ()),
            *self.inside.values(),
        ]  # one that gives up may set the others free
        limits = [
            call.timeout for call in waiting if call.timeout is not None and call.left is None
        ]
        fields["gives_up"] = min(limits, default=None)
        lines = {rank: self.line(rank, (calls or {}).get(rank)) for rank in self.states}
        return Verdict(
            kind,
            headline if kind == "ok" else write(headline, lines, list(notes)),
            lines=lines,
            **fields,
        )
