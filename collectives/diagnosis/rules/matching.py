"""Put together what belongs together: the ranks' calls of one collective, and the two ends of each message.

Calls are noted in any order, twice each: as they are entered, and as they are left. What fits is forgotten; the first thing that
does not fit is kept. Pure: it knows calls and nothing else.
"""

import functools
import linecache
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from collectives.diagnosis.rules.compare import (
    Difference,
    compare,
    compare_message,
    minority,
    plain_name,
)
from collectives.diagnosis.rules.messages import WINDOW, Messages
from collectives.recording.call import WORLD, Call, sequence_key, was_refused
from collectives.spec.calls import POINT_TO_POINT

# So many places of a program are remembered as being called by all ranks together.
_PLACES = 10_000


@dataclass
class Odd:
    """A collective that its members called from different places. `usual`: they do so with roles that change, as roots do."""

    calls: dict[int, Call]
    after: dict[int, Call] = field(default_factory=dict)  # the next collective
    usual: bool = False


@dataclass
class Sequence:
    """The collectives of one group, in order; the making of groups is a sequence of its own."""

    members: tuple[int, ...] = ()
    pending: dict[int, dict[int, Call]] = field(default_factory=lambda: defaultdict(dict))
    counts: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    before: dict[int, Call] = field(
        default_factory=dict
    )  # the calls of the last collective that was complete
    common: set[tuple] = field(default_factory=set)  # places from which all members called together
    odd: dict[frozenset, Odd] = field(
        default_factory=dict
    )  # by their places, the first collective called from these

    def absent(self, seq: int) -> tuple[int, ...]:
        return tuple(
            rank
            for rank in self.members
            if rank not in self.pending.get(seq, {}) and self.counts[rank] <= seq
        )


class Matching:
    """`difference`: the first calls that belong together and do not fit. `matched`: how many collectives and messages did fit."""

    def __init__(self, calls: Iterable[Call] = ()):
        self.sequences: dict[tuple, Sequence] = defaultdict(Sequence)
        self.open: dict[int, dict[int, Call]] = defaultdict(dict)
        self.last: dict[int, Call] = {}
        self.messages = Messages()
        self.difference: Difference | None = None
        self.refused: set[int] = set()  # the ranks whose calls of that difference raised
        self.given_up: dict[
            int, Call
        ] = {}  # the first collective that all joined, and that failed for some
        self.destroyed: dict[
            int, Call
        ] = {}  # where ranks ended the group of all ranks, as far as they began no other
        self.matched = 0
        self.lossy = False  # calls were missed: that a message has no other end means nothing
        for call in calls:
            self.note(call)

    def note(self, call: Call) -> None:
        """A call that was entered, or left. One that was left before it was first seen is noted once."""
        opened = self.open[call.rank]
        is_new = call.number not in opened
        if call.left is None:
            opened[call.number] = call
        else:
            opened.pop(call.number, None)
        if is_new:
            if call.name != "destroy_process_group":
                self.last[call.rank] = call
                self.destroyed.pop(call.rank, None)
            elif call.group == WORLD:
                self.destroyed[call.rank] = call
            self._forgive(call)
            self._enter(call)
        elif (last := self.last.get(call.rank)) is not None and last.number == call.number:
            self.last[call.rank] = call  # which bears its error by now
        if call.left is not None:
            self._leave(call)

    def _enter(self, call: Call) -> None:
        if was_refused(call.error or ""):  # torch never began it
            return
        if call.name in POINT_TO_POINT:
            self._met(self.messages.post(call))
        elif call.seq is not None and call.name != "wait":
            its = self.of(call)
            its.members = its.members or call.members
            missed = its.counts[call.rank] < call.seq
            its.counts[call.rank] = max(its.counts[call.rank], call.seq + 1)
            its.pending[call.seq][call.rank] = call
            for seq in sorted(its.pending) if missed else [call.seq]:
                if not its.absent(seq):
                    self._complete(its, seq)
            if len(its.pending) > WINDOW:
                del its.pending[min(its.pending)]

    def _forgive(self, call: Call) -> None:
        """A difference of which every rank was told by an exception, and went on, was none that matters."""
        if (
            self.difference
            and self.refused >= set(self.difference.calls)
            and call.rank in self.refused
        ):
            self.difference = None

    def _leave(self, call: Call) -> None:
        if (
            call.error
            and self.difference
            and self.difference.calls.get(call.rank, call).number == call.number
        ):
            self.refused.add(call.rank)
        if call.name in POINT_TO_POINT or call.name == "wait":
            if was_refused(call.error or "") and self.messages.refused(call):
                self._withdraw(call)
            self._met(self.messages.arrived(call))
            if call.error:
                self.messages.failed(call)
        if call.name == "wait":
            self._waited(call)
        elif call.error and call.seq is not None:
            its = self.of(call)
            if was_refused(call.error):
                self._undo(its, call)
            joined = its.pending.get(call.seq, {})
            if call.rank in joined and was_refused(call.error):
                del joined[call.rank]
                its.counts[call.rank] = min(its.counts[call.rank], call.seq)
            elif call.rank in joined:
                joined[call.rank] = call
            elif call.rank in its.before and its.before[call.rank].number == call.number:
                its.before[call.rank] = call
                self._note_given_up(its.before)

    def _waited(self, call: Call) -> None:
        """A wait that was too short may be repeated: what the collective came to is what the last one says."""
        joined = self.of(call).pending.get(call.seq, {}) if call.seq is not None else {}
        for calls in (joined, self.given_up):
            if (one := calls.get(call.rank)) is not None and one.number == call.of:
                calls[call.rank] = replace(one, error=call.error, left=call.left)

    def _complete(self, its: Sequence, seq: int) -> None:
        calls = its.pending.pop(seq)
        self.matched += 1
        difference = compare(calls) or _swapped(its.before, calls)
        self._keep(difference)
        if (odd := its.odd.get(_places(its.before))) is not None and odd.calls is its.before:
            odd.after = calls
        places = _places(calls)
        if len(places) == 1 and len(its.common) < _PLACES:
            its.common |= places
        elif len(places) > 1 and len(its.odd) < _PLACES:
            odd = its.odd.setdefault(places, Odd(calls))
            odd.usual |= any(
                _place(odd.calls[rank]) != _place(call)
                for rank, call in calls.items()
                if rank in odd.calls
            )
        if any(call.error for call in calls.values()):
            self._note_given_up(calls)
        its.before = calls

    def _undo(self, its: Sequence, call: Call) -> None:
        """The collective that was complete last was not, if this call, which was seen while torch looked at it, was refused."""
        calls = its.before
        if call.rank not in calls or calls[call.rank].number != call.number:
            return
        self._withdraw(call)
        its.pending[call.seq], its.before = calls, {}
        its.odd = {places: odd for places, odd in its.odd.items() if odd.calls is not calls}

    def _withdraw(self, call: Call) -> None:
        """What it seemed to be a part of did not take place."""
        self.matched -= 1
        different = self.difference.calls.get(call.rank) if self.difference else None
        if different is not None and different.number == call.number:
            self.difference = None

    def _note_given_up(self, calls: dict[int, Call]) -> None:
        self.given_up = self.given_up or calls

    def _met(self, ends: tuple[Call, Call] | None) -> None:
        if ends is not None:
            self.matched += 1
            if not self.lossy and self.messages.is_certain(ends[1]):
                self._keep(compare_message(*ends))

    def _keep(self, difference: Difference | None) -> None:
        if self.difference is None and difference is not None:
            self.difference = difference
            self.refused = {rank for rank, call in difference.calls.items() if call.error}

    def of(self, call: Call) -> Sequence:
        """The sequence of the collective that this call, or the Work that it waits for, is."""
        return self.sequences[sequence_key(call.group, call.awaited or call.name)]

    def waiting(self) -> list[tuple[Sequence, int]]:
        """Collectives that some members have entered and others have not, those that have waited longest first."""
        found = [
            (its, seq)
            for its in self.sequences.values()
            for seq, calls in its.pending.items()
            if calls
        ]
        return sorted(
            found, key=lambda one: min(call.entered for call in one[0].pending[one[1]].values())
        )


def out_of_step(its: Sequence) -> Difference | None:
    """Where ranks began to make equal calls from different places: places from which at other times all of them call together,
    or places that one rank comes to a call later than the others."""
    for odd in its.odd.values():
        places = {rank: _place(call) for rank, call in odd.calls.items()}
        after = odd.after or its.pending.get(next(iter(odd.calls.values())).seq + 1, {})
        shifted = any(
            _place(call) in set(places.values()) - {places.get(rank)}
            for rank, call in after.items()
        )
        if (shifted and not odd.usual) or set(places.values()) <= its.common:
            return Difference("order", minority(places), odd.calls)
    return None


def _place(call: Call) -> tuple[str, int]:
    return call.file, call.line


def _places(calls: dict[int, Call]) -> frozenset:
    return frozenset(map(_place, calls.values()))


def _swapped(before: dict[int, Call], calls: dict[int, Call]) -> Difference | None:
    """Two equal calls that one rank makes in one order and another rank in the other: told by the words of the program."""
    if len(_places(calls)) == 1:
        return None
    ranks = [rank for rank in calls if rank in before]
    for one in ranks:
        for other in ranks:
            four = [before[one], calls[one], before[other], calls[other]]
            first, second, third, fourth = (_words(*_place(call)) for call in four)
            crossed = first == fourth != second == third and first
            # subtle: `if rank == i: f(a) else: f(b)` in a loop looks alike, but stays within two lines of one function.
            apart = (
                len({(call.file, call.line) for call in four}) == 4
                or four[0].function != four[1].function
            )
            if (
                crossed
                and apart
                and len({(plain_name(call), call.op, call.peer, call.tensors) for call in four})
                == 1
            ):
                return Difference(
                    "order",
                    minority({rank: _words(*_place(before[rank])) for rank in ranks}),
                    before,
                )
    return None


@functools.lru_cache
def _words(file: str, line: int) -> str:
    return linecache.getline(file, line).partition("#")[0].strip()
