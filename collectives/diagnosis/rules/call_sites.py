"""The lines from which ranks call the collectives of one group: who is out of step. Pure."""

import linecache
from dataclasses import dataclass, field

from collectives.diagnosis.rules.compare import Difference, minority, plain_name
from collectives.recording.call import Call

# So many lines of a program are remembered.
_MOST = 10_000

Line = tuple[str, int]  # file, line


@dataclass
class Split:
    """A collective that its members called from different lines."""

    calls: dict[int, Call]
    after: dict[int, Call] = field(default_factory=dict)  # the next collective
    roles_change: bool = False  # the same lines, later by other ranks: as where roots take turns


class CallSites:
    """The lines from which the collectives of one group were called, noted in their order."""

    def __init__(self):
        self.last: dict[int, Call] = {}  # the last collective
        self.shared: set[Line] = set()  # lines from which all members called together
        self.splits: dict[frozenset[Line], Split] = {}  # by their lines

    def note(self, calls: dict[int, Call]) -> None:
        """The next collective, complete."""
        split = self.splits.get(_lines(self.last))
        if split is not None and split.calls is self.last:
            split.after = calls
        lines = _lines(calls)
        if len(lines) == 1 and len(self.shared) < _MOST:
            self.shared |= lines
        elif len(lines) > 1 and len(self.splits) < _MOST:
            split = self.splits.setdefault(lines, Split(calls))
            split.roles_change |= any(
                _line(split.calls[rank]) != _line(call)
                for rank, call in calls.items()
                if rank in split.calls
            )
        self.last = calls

    def out_of_step(self, pending: dict[int, dict[int, Call]]) -> Difference | None:
        """The first collective that ranks called from different lines because one rank is ahead.

        It shows in one of two ways: all ranks call together from each of these lines at other
        times; or a rank comes later to a line from which another one called. `pending`: by seq, the
        calls of collectives that are not complete.
        """
        for split in self.splits.values():
            lines = {rank: _line(call) for rank, call in split.calls.items()}
            seq = next(iter(split.calls.values())).seq or 0
            after = split.after or pending.get(seq + 1, {})
            comes_later = any(
                _line(call) in set(lines.values()) - {lines.get(rank)}
                for rank, call in after.items()
            )
            if (comes_later and not split.roles_change) or set(lines.values()) <= self.shared:
                return Difference("order", minority(lines), split.calls)
        return None

    def swapped(self, calls: dict[int, Call]) -> Difference | None:
        """Two equal calls that two ranks make in opposite orders, as the text of their lines shows.

        `calls`: the next collective.
        """
        if len(_lines(calls)) == 1:
            return None
        ranks = [rank for rank in calls if rank in self.last]
        for one in ranks:
            for other in ranks:
                if _are_swapped(self.last[one], calls[one], self.last[other], calls[other]):
                    sides = {rank: _text(*_line(self.last[rank])) for rank in ranks}
                    return Difference("order", minority(sides), self.last)
        return None


def _are_swapped(first: Call, second: Call, other_first: Call, other_second: Call) -> bool:
    four = (first, second, other_first, other_second)
    texts = [_text(*_line(call)) for call in four]
    if not texts[0] or texts[0] == texts[1] or texts[0:2] != [texts[3], texts[2]]:
        return False
    # subtle: `if rank == i: f(a) else: f(b)` in a loop looks alike, but stays within two lines of
    # one function.
    apart = len(_lines(dict(enumerate(four)))) == 4 or first.function != other_first.function
    asked = {(plain_name(call), call.op, call.peer, call.tensors) for call in four}
    return apart and len(asked) == 1


def _line(call: Call) -> Line:
    return call.file, call.line


def _lines(calls: dict[int, Call]) -> frozenset[Line]:
    return frozenset(map(_line, calls.values()))


def _text(file: str, line: int) -> str:
    return linecache.getline(file, line).partition("#")[0].strip()
