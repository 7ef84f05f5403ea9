"""Match the two ends of each message: those of one channel meet in the order of their calls.

Pure: it knows calls and nothing else.
"""

from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field

from collectives.recording.call import Call
from collectives.semantics.calls import SENDS

# So many ends of one channel wait for their other ends; those that have waited longest are
# forgotten then.
WINDOW = 4096


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
