"""Put together what belongs together: the ranks' calls of one collective, and the two ends of each message.

Calls are noted in any order, twice each: as they are entered, and as they are left. What fits is forgotten; the first thing that
does not fit is kept. Pure: it knows calls and nothing else.
"""

import linecache
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from collectives.diagnosis.agreement import Difference, compare, compare_message, minority, plain_name
from collectives.recording.call import GROUPS, POINT_TO_POINT, Call, sequence, was_refused

# So many places of a program are remembered as being called by all ranks together.
_PLACES = 10_000


@dataclass
class Sequence:
    """The collectives of one group, in order; the making of groups is a sequence of its own."""

    members: tuple[int, ...] = ()
    pending: dict[int, dict[int, Call]] = field(default_factory=lambda: defaultdict(dict))
    counts: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    before: dict[int, Call] = field(default_factory=dict)  # the calls of the last collective that was complete
    common: set[tuple] = field(default_factory=set)  # places from which all members called together
    odd: dict[int, Call] = field(default_factory=dict)  # the first collective that they called from different places

    def absent(self, seq: int) -> tuple[int, ...]:
        return tuple(rank for rank in self.members if rank not in self.pending.get(seq, {}) and self.counts[rank] <= seq)


class Matching:
    """`difference`: the first calls that belong together and do not fit. `matched`: how many collectives and messages did fit."""

    def __init__(self, calls: Iterable[Call] = ()):
        self.sequences: dict[tuple, Sequence] = defaultdict(Sequence)
        self.open: dict[int, dict[int, Call]] = defaultdict(dict)
        self.last: dict[int, Call] = {}
        self.sends: dict[tuple, dict[tuple, Call]] = defaultdict(dict)
        self.receives: dict[tuple, dict[tuple, Call]] = defaultdict(dict)
        self.from_any: dict[tuple, Call] = {}
        self.mixed: set[tuple] = set()
        self.difference: Difference | None = None
        self.refused: set[int] = set()  # the ranks whose calls of that difference raised
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
            self._forgive(call)
            self._enter(call)
        if call.left is not None:
            self._leave(call)

    def _enter(self, call: Call) -> None:
        if call.name in POINT_TO_POINT:
            self._post(call)
        elif call.seq is not None and call.name != "wait" and not was_refused(call.error or ""):
            its = self.of(call)
            its.members = its.members or call.members
            missed = its.counts[call.rank] < call.seq
            its.counts[call.rank] = max(its.counts[call.rank], call.seq + 1)
            its.pending[call.seq][call.rank] = call
            for seq in sorted(its.pending) if missed else [call.seq]:
                if not its.absent(seq):
                    self._complete(its, seq)

    def _forgive(self, call: Call) -> None:
        """A difference of which every rank was told by an exception, and went on, was none that matters."""
        if self.difference and self.refused >= set(self.difference.calls) and call.rank in self.refused:
            self.difference = None

    def _leave(self, call: Call) -> None:
        if call.error and self.difference and self.difference.calls.get(call.rank, call).number == call.number:
            self.refused.add(call.rank)
        key = call.rank, call.number if call.of is None else call.of
        if call.name in GROUPS or call.name in POINT_TO_POINT or call.name == "wait":
            number = call.number if call.of is None else call.of
            if (posted := self.from_any.pop((call.rank, number), None)) and call.source is not None and not call.error:
                self._post_receive((posted.group, call.source, posted.rank, posted.tag), posted)
            if call.error:
                for posted in (*self.sends.values(), *self.receives.values()):
                    posted.pop(key, None)
        if call.error and call.seq is not None:
            its = self.of(call)
            joined = its.pending.get(call.seq, {})
            if call.rank in joined and was_refused(call.error):
                del joined[call.rank]
                its.counts[call.rank] = min(its.counts[call.rank], call.seq)
            elif call.rank in joined:
                joined[call.rank] = call

    def _complete(self, its: Sequence, seq: int) -> None:
        calls = its.pending.pop(seq)
        self.matched += 1
        difference = compare(calls) or _swapped(its.before, calls)
        self._keep(difference)
        places = {(call.file, call.line) for call in calls.values()}
        if len(places) == 1 and len(its.common) < _PLACES:
            its.common |= places
        elif len(places) > 1 and not its.odd:
            its.odd = calls
        its.before = calls

    def _post(self, call: Call) -> None:
        key = call.rank, call.number
        if "send" in call.name:
            channel = call.group, call.rank, call.peer, call.tag
            if self.receives[channel]:
                self._meet(call, self.receives[channel].pop(next(iter(self.receives[channel]))))
            else:
                self.sends[channel][key] = call
        elif call.peer is None:
            self.mixed.add((call.group, call.rank, call.tag))
            self.from_any[key] = call
        else:
            self._post_receive((call.group, call.peer, call.rank, call.tag), call)

    def _post_receive(self, channel: tuple, call: Call) -> None:
        if self.sends[channel]:
            self._meet(self.sends[channel].pop(next(iter(self.sends[channel]))), call)
        else:
            self.receives[channel][call.rank, call.number] = call

    def _meet(self, send: Call, receive: Call) -> None:
        self.matched += 1
        # subtle: where a rank receives from any source and from named ones, which message met which receive is not known.
        if not self.lossy and (receive.group, receive.rank, receive.tag) not in self.mixed:
            self._keep(compare_message(send, receive))

    def _keep(self, difference: Difference | None) -> None:
        if self.difference is None and difference is not None:
            self.difference = difference
            self.refused = {rank for rank, call in difference.calls.items() if call.error}

    def of(self, call: Call) -> Sequence:
        """The sequence of the collective that this call, or the Work that it waits for, is."""
        return self.sequences[sequence(call.group, call.awaited or call.name)]

    def unmatched(self) -> list[Call]:
        """Messages without another end."""
        ends = [*self.sends.values(), *self.receives.values()]
        return [*(call for posted in ends for call in posted.values()), *self.from_any.values()]

    def is_unmatched(self, rank: int, number: int) -> bool:
        return any(call.rank == rank and call.number == number for call in self.unmatched())

    def sent_to(self, call: Call) -> bool:
        """Whether a message waits that a receive from any source can take."""
        keys = [key for key, posted in self.sends.items() if posted]
        return any((group, to, tag) == (call.group, call.rank, call.tag) for group, _, to, tag in keys)

    def waiting(self) -> list[tuple[Sequence, int]]:
        """Collectives that some members have entered and others have not, those that have waited longest first."""
        found = [(its, seq) for its in self.sequences.values() for seq, calls in its.pending.items() if calls]
        return sorted(found, key=lambda one: min(call.entered for call in one[0].pending[one[1]].values()))


def out_of_step(its: Sequence) -> Difference | None:
    """Where ranks began to make equal calls from different places that at other times all of them call together."""
    places = {rank: (call.file, call.line) for rank, call in its.odd.items()}
    if places and set(places.values()) <= its.common:
        return Difference("order", minority(places), its.odd)
    return None


def _swapped(before: dict[int, Call], calls: dict[int, Call]) -> Difference | None:
    """Two equal calls that one rank makes in one order and another rank in the other: told by the words of the program."""
    ranks = [rank for rank in calls if rank in before]
    for one in ranks:
        for other in ranks:
            four = [before[one], calls[one], before[other], calls[other]]
            first, second, third, fourth = (_words(call) for call in four)
            crossed = first == fourth != second == third and first
            # subtle: `if rank == i: f(a) else: f(b)` in a loop looks alike, but stays within two lines of one function.
            apart = len({(call.file, call.line) for call in four}) == 4 or four[0].function != four[1].function
            if crossed and apart and len({(plain_name(call), call.op, call.peer, call.tensors) for call in four}) == 1:
                return Difference("order", minority({rank: _words(before[rank]) for rank in ranks}), before)
    return None


def _words(call: Call) -> str:
    return linecache.getline(call.file, call.line).partition("#")[0].strip()
