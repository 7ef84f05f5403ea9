"""Match the ranks' calls of each collective, and the two ends of each message. Pure.

Calls are noted in any order, once as they are entered and once as they are left. What fits is
forgotten; the first thing that does not fit is kept. Pure: it knows calls and nothing else.
"""

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from collectives.diagnosis.rules.call_sites import CallSites
from collectives.diagnosis.rules.compare import Difference, compare, compare_message
from collectives.diagnosis.rules.messages import WINDOW, Messages
from collectives.recording.call import WORLD, Call, was_refused
from collectives.recording.call import sequence_key as _key
from collectives.semantics.calls import POINT_TO_POINT

# So many of the latest calls of each rank are remembered as steps of its path.
_STEPS = 1000

# A call's name, group, file and line.
Step = tuple[str, str, str, int]


@dataclass
class Sequence:
    """The collectives of one group, in order. Calls that make groups have their own sequence.

    `pending`: by seq, the calls of collectives that are not complete. By rank: `counts`: how many
    it has entered. `newest`: the number of its last call here. `since`: see Matching.
    """

    members: tuple[int, ...] = ()
    pending: dict[int, dict[int, Call]] = field(default_factory=lambda: defaultdict(dict))
    counts: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    newest: dict[int, int] = field(default_factory=dict)
    since: dict[int, int] = field(default_factory=dict)
    sites: CallSites = field(default_factory=CallSites)

    def absent(self, seq: int) -> tuple[int, ...]:
        """The members that have not entered the collective."""
        return tuple(rank for rank in self._not_seen(seq) if self._is_known(rank))

    def unknown(self, seq: int) -> tuple[int, ...]:
        """The members that may have entered it: their last calls here are not known."""
        return tuple(rank for rank in self._not_seen(seq) if not self._is_known(rank))

    def _not_seen(self, seq: int) -> list[int]:
        joined = self.pending.get(seq, {})
        return [rank for rank in self.members if rank not in joined and self.counts[rank] <= seq]

    def _is_known(self, rank: int) -> bool:
        return rank not in self.since or self.newest.get(rank, -1) >= self.since[rank]


class Matching:
    """The calls of all ranks. `difference`: the first calls that belong together and do not fit.

    By rank: `open`: the calls that it is inside, by number. `last`: its last call. `destroyed`: its
    call that destroyed the group of all ranks, if it has begun no other. `given_up`: its call of
    the first collective that all joined and that failed for some. `since`: if calls of it were
    missed, the number from which on all are known. `paths`: the steps of its latest calls.
    """

    def __init__(self, calls: Iterable[Call] = ()):
        self.since: dict[int, int] = {}
        self.paths: dict[int, deque[Step]] = defaultdict(lambda: deque(maxlen=_STEPS))
        self.sequences: dict[tuple, Sequence] = defaultdict(lambda: Sequence(since=self.since))
        self.messages = Messages()
        self.open: dict[int, dict[int, Call]] = defaultdict(dict)
        self.last: dict[int, Call] = {}
        self.destroyed: dict[int, Call] = {}
        self.given_up: dict[int, Call] = {}
        self.difference: Difference | None = None
        self.failed: set[int] = set()  # the ranks whose calls of that difference raised
        self.matched = 0  # how many collectives and messages fitted
        for call in calls:
            self.note(call)

    def note(self, call: Call) -> None:
        """A call that was entered, or left; noted once if it has left when it is first seen."""
        opened = self.open[call.rank]
        is_new = call.number not in opened
        if call.left is None:
            opened[call.number] = call
        else:
            opened.pop(call.number, None)
        last = self.last.get(call.rank)
        if is_new:
            if call.name != "destroy_process_group":
                self.last[call.rank] = call
                self.destroyed.pop(call.rank, None)
            elif call.group == WORLD:
                self.destroyed[call.rank] = call
            if call.name != "wait":
                self.paths[call.rank].append((call.name, call.group, call.file, call.line))
            self._forgive(call)
            self._enter(call)
        elif last is not None and last.number == call.number:
            self.last[call.rank] = call  # which bears its error by now
        if call.left is not None:
            self._leave(call)

    def _enter(self, call: Call) -> None:
        if was_refused(call.error or ""):  # torch never began it
            return
        if call.name in POINT_TO_POINT:
            self._met(self.messages.post(call))
        elif call.seq is not None and call.name != "wait":
            sequence = self.of(call)
            sequence.members = sequence.members or call.members
            missed = sequence.counts[call.rank] < call.seq
            sequence.counts[call.rank] = max(sequence.counts[call.rank], call.seq + 1)
            sequence.newest[call.rank] = max(sequence.newest.get(call.rank, -1), call.number)
            sequence.pending[call.seq][call.rank] = call
            for seq in sorted(sequence.pending) if missed else [call.seq]:
                if not sequence.absent(seq) and not sequence.unknown(seq):
                    self._complete(sequence, seq)
            if len(sequence.pending) > WINDOW:
                del sequence.pending[min(sequence.pending)]

    def _forgive(self, call: Call) -> None:
        """A difference does not matter if all its ranks got an exception and this one goes on."""
        found = self.difference
        if found and self.failed >= set(found.calls) and call.rank in self.failed:
            self.difference = None

    def _leave(self, call: Call) -> None:
        if call.error and self.difference:
            differing = self.difference.calls.get(call.rank, call)
            if differing.number == call.number:
                self.failed.add(call.rank)
        if call.name in POINT_TO_POINT or call.name == "wait":
            self._met(self.messages.arrived(call))
            if call.error:
                self.messages.failed(call)
        if call.name == "wait":
            self._waited(call)
        elif call.error and call.seq is not None:
            self._failed(call)

    def _failed(self, call: Call) -> None:
        """A collective that raised: what is known of it bears its error from now on."""
        sequence = self.of(call)
        joined, last = sequence.pending.get(call.seq or 0, {}), sequence.sites.last
        if call.rank in joined:
            joined[call.rank] = call
        elif call.rank in last and last[call.rank].number == call.number:
            last[call.rank] = call
            self.given_up = self.given_up or last

    def _waited(self, call: Call) -> None:
        """A wait may time out and be repeated: the last one says how the collective ended."""
        joined = self.of(call).pending.get(call.seq, {}) if call.seq is not None else {}
        for calls in (joined, self.given_up):
            waited_for = calls.get(call.rank)
            if waited_for is not None and waited_for.number == call.of:
                calls[call.rank] = replace(waited_for, error=call.error, left=call.left)

    def _complete(self, sequence: Sequence, seq: int) -> None:
        calls = sequence.pending.pop(seq)
        self.matched += 1
        self._keep(compare(calls) or sequence.sites.swapped(calls))
        sequence.sites.note(calls)
        if any(call.error for call in calls.values()):
            self.given_up = self.given_up or calls

    def _met(self, ends: tuple[Call, Call] | None) -> None:
        if ends is not None:
            self.matched += 1
            if self.knows_messages_of(*ends) and self.messages.is_certain(ends[1]):
                self._keep(compare_message(*ends))

    def _keep(self, difference: Difference | None) -> None:
        if self.difference is None and difference is not None:
            self.difference = difference
            self.failed = {rank for rank, call in difference.calls.items() if call.error}

    def knows_messages_of(self, *calls: Call) -> bool:
        """Whether no message was missed that could be the other end of these."""
        if not self.since:
            return True
        ends = {rank for call in calls for rank in (call.rank, call.peer)}
        return None not in ends and ends.isdisjoint(self.since)

    def of(self, call: Call) -> Sequence:
        """The sequence of the collective that this call is, or whose Work it waits for."""
        return self.sequences[_key(call.group, call.awaited or call.name)]

    def waiting(self) -> list[tuple[Sequence, int]]:
        """Collectives that some members have entered and others have not, the oldest first."""

        def began(found: tuple[Sequence, int]) -> int:
            sequence, seq = found
            return min(call.entered for call in sequence.pending[seq].values())

        found = [
            (sequence, seq)
            for sequence in self.sequences.values()
            for seq, calls in sequence.pending.items()
            if calls
        ]
        return sorted(found, key=began)
