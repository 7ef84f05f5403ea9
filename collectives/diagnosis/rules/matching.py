"""Match the ranks' calls of each collective, and the two ends of each message.

Calls are noted in any order, once as they are entered and once as they are left. What fits is
forgotten; the first thing that does not fit is kept. The ends of one channel meet in the order of
their calls. Pure: it knows calls and nothing else.
"""

from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from collectives.diagnosis.rules.compare import CallSites, Difference, compare, compare_message
from collectives.recording.call import WORLD, Call, was_refused
from collectives.recording.call import sequence_key as _key
from collectives.semantics.calls import FROM_ROOT, GROUPS, POINT_TO_POINT, SENDS, TO_ROOT

# So many of the latest calls of each rank are remembered as steps of its path.
_STEPS = 1000

# So many ends of one channel wait for their other ends; those that have waited longest are
# forgotten then.
WINDOW = 4096

# So many of the latest sends of each rank for which it has not waited are remembered.
_AWAITED = 100

# A call's name, group, file and line.
Step = tuple[str, str, str, int]


@dataclass
class End:
    """One end of a channel: the calls of its sender, or of its receiver.

    `waiting`: the calls that have not met another end, by rank and number. `before`: how many calls
    came before these. `forgotten`: how many of those before never met another end, as far as is
    known. `failed`: the last that ended in an error before it met one.
    """

    waiting: OrderedDict[tuple[int, int], Call] = field(default_factory=OrderedDict)
    before: int = 0
    forgotten: int = 0
    failed: tuple[int, int] | None = None

    def take(self) -> Call | None:
        """The call that has waited longest; None if nothing waits, or if that call is forgotten."""
        if self.forgotten:
            self.forgotten -= 1
            return None
        self.before += 1
        return self.waiting.popitem(last=False)[1]

    def put(self, call: Call) -> None:
        self.waiting[call.key] = call
        if len(self.waiting) > WINDOW:
            self.waiting.popitem(last=False)
            self.before += 1
            self.forgotten += 1


def channel(call: Call, source: int | None = None) -> tuple:
    """Group, sender, receiver and tag. `source`: of a receive that took what came."""
    there = call.peer if source is None else source
    ranks = (call.rank, there) if call.name in SENDS else (there, call.rank)
    return call.group, *ranks, call.tag


def _awaited(call: Call) -> tuple[int, int]:
    """The key of the call, or of the one whose Work it waits for."""
    return call.rank, call.number if call.of is None else call.of


class Messages:
    def __init__(self):
        self.sends: dict[tuple, End] = defaultdict(End)
        self.receives: dict[tuple, End] = defaultdict(End)
        self.from_any: dict[tuple, Call] = {}
        self.mixed: set[tuple] = set()

    def post(self, call: Call) -> tuple[Call, Call] | None:
        """The send and the receive, if this call meets its other end."""
        if call.name in SENDS:
            return self._meet(call, channel(call), self.sends, self.receives)
        if call.peer is None:
            self.mixed.add((call.group, call.rank, call.tag))
            self.from_any[call.key] = call
            return None
        return self._meet(call, channel(call), self.receives, self.sends)

    def arrived(self, call: Call) -> tuple[Call, Call] | None:
        """A receive, or the wait for it, has left: now the sender of what it took is known."""
        posted = self.from_any.pop(_awaited(call), None)
        if posted is None or call.source is None or call.error:
            return None
        return self._meet(posted, channel(posted, call.source), self.receives, self.sends)

    def failed(self, call: Call) -> None:
        """The call, or the wait for it, ended in an error: no other end will come for it."""
        for end in (*self.sends.values(), *self.receives.values()):
            if end.waiting.pop(_awaited(call), None) is not None:
                end.failed = _awaited(call)

    def _meet(
        self, call: Call, key: tuple, own: dict[tuple, End], others: dict[tuple, End]
    ) -> tuple[Call, Call] | None:
        if not (others[key].waiting or others[key].forgotten):
            own[key].put(call)
            return None
        own[key].before += 1
        other = others[key].take()
        if other is None:
            return None
        return (call, other) if own is self.sends else (other, call)

    def is_certain(self, receive: Call) -> bool:
        """Whether it is known which message met this receive.

        subtle: it is not where a rank receives both from any source and from named ones.
        """
        return (receive.group, receive.rank, receive.tag) not in self.mixed

    def unmatched(self) -> list[Call]:
        """Messages without another end."""
        ends = (*self.sends.values(), *self.receives.values())
        return [*(call for end in ends for call in end.waiting.values()), *self.from_any.values()]

    def is_unmatched(self, call: Call) -> bool:
        """Whether the call, or the one that it waits for, has (or had) no other end."""
        if any(one.key == _awaited(call) for one in self.unmatched()):
            return True
        for own, others in ((self.sends, self.receives), (self.receives, self.sends)):
            for key in [key for key, end in own.items() if end.failed == _awaited(call)]:
                # Else they missed each other.
                return not (others[key].failed or others[key].waiting)
        return False

    def sent_to(self, call: Call) -> bool:
        """Whether a message waits that a receive from any source can take."""
        return any(
            end.waiting and (group, to, tag) == (call.group, call.rank, call.tag)
            for (group, _, to, tag), end in self.sends.items()
        )


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
    `unawaited`: its sends, by number, for whose Work it has not waited.
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
        self.unawaited: dict[int, OrderedDict[int, Call]] = defaultdict(OrderedDict)
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
            self._note_await(call)
            if call.name != "wait":
                self.paths[call.rank].append((call.name, call.group, call.file, call.line))
            self._forgive(call)
            self._enter(call)
        elif last is not None and last.number == call.number:
            self.last[call.rank] = call  # which bears its error by now
        if call.left is not None:
            self._leave(call)

    def _note_await(self, call: Call) -> None:
        sends = self.unawaited[call.rank]
        if call.name == "wait":
            sends.pop(call.of or 0, None)
        elif call.name in SENDS and call.is_async:
            sends[call.number] = call
            if len(sends) > _AWAITED:
                sends.popitem(last=False)

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

        def began(collective: tuple[Sequence, int]) -> int:
            sequence, seq = collective
            return min(call.entered for call in sequence.pending[seq].values())

        found = [
            (sequence, seq)
            for sequence in self.sequences.values()
            for seq, calls in sequence.pending.items()
            if calls
        ]
        return sorted(found, key=began)


def kind_of(call: Call) -> str:
    """The name of the call, or of the one whose Work it waits for."""
    return call.awaited or call.name


def waits_for(matching: Matching, call: Call) -> list[int]:
    """The ranks that must each do something before the call can return; only the certain ones.

    A receive from any source waits for no particular rank. A rank that only gives data to the root
    may return before the others come.
    """
    name = kind_of(call)
    if name in POINT_TO_POINT:
        return [call.peer] if call.peer is not None and matching.messages.is_unmatched(call) else []
    if call.seq is None or name in GROUPS:
        return []
    absent = matching.of(call).absent(call.seq)
    if name in FROM_ROOT:
        return [call.peer] if call.peer in absent else []
    if name in TO_ROOT and call.rank != call.peer:
        return []
    return list(absent)
