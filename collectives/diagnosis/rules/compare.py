"""Compare the calls of a group's members, their lines, and the two ends of a message. Pure."""

import dataclasses
import linecache
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from collectives.recording.call import Call, TensorKind
from collectives.semantics.calls import BY_NAME, FROM_ROOT, GROUPS, TO_ROOT, BufferSpec, Layout

# So many lines of a program are remembered.
_MOST_LINES = 10_000

Line = tuple[str, int]  # file, line


@dataclass(frozen=True)
class Difference:
    """A difference between calls that belong together, and the ranks that are to blame.

    field: "call", "group", "op", "root", "dtype", "shape", "splits", "tag" or "order".
    """

    field: str
    guilty: tuple[int, ...]
    calls: dict[int, Call]


def minority(sides: Mapping[int, object]) -> tuple[int, ...]:
    """The ranks that are not on the largest side; every rank if no side is the largest."""
    counts = Counter(sides.values()).most_common()
    if len(counts) > 1 and counts[0][1] > counts[1][1]:
        return tuple(sorted(rank for rank, side in sides.items() if side != counts[0][0]))
    return tuple(sorted(sides))


def compare(calls: dict[int, Call]) -> Difference | None:
    """The first thing in which the ranks' calls of one collective differ."""
    for field, value in _FIELDS.items():
        sides = {rank: value(call) for rank, call in calls.items()}
        if len({side for side in sides.values() if side is not None}) > 1:
            return Difference(field, minority(sides), calls)
    spec = BY_NAME.get(next(iter(calls.values())).name)
    if spec is None:  # the Flight Recorder has names of its own: of backends, of record_comm
        return None
    if spec.in_place:
        sides = {rank: tuple(kind.numel for kind in call.tensors) for rank, call in calls.items()}
        is_same = len(set(sides.values())) == 1
        return None if is_same else Difference("shape", minority(sides), calls)
    return _compare_pieces(calls)


def compare_message(send: Call, receive: Call) -> Difference | None:
    """The first thing in which the two ends of one message differ."""
    calls = {send.rank: send, receive.rank: receive}
    if BY_NAME[send.name].objects != BY_NAME[receive.name].objects:
        return Difference("call", tuple(sorted(calls)), calls)
    given, wanted = (
        [(kind.dtype, kind.numel) for kind in call.tensors] for call in (send, receive)
    )
    if given == wanted or not given or not wanted:
        return None
    field = "dtype" if given[0][0] != wanted[0][0] else "shape"
    return Difference(field, tuple(sorted(calls)), calls)


def plain_name(call: Call) -> str:
    """One name for a function that has several; a name without a record stays as it is."""
    return BY_NAME[call.name].name if call.name in BY_NAME else call.name


def _dtypes(call: Call) -> tuple | None:
    return tuple(sorted({kind.dtype for kind in call.tensors})) or None


# By field, what a call says of it; None if it says nothing.
_FIELDS = {
    "call": plain_name,
    "group": lambda call: (call.members, call.ranks) if call.members else None,
    "root": lambda call: None if call.name in GROUPS else call.peer,
    "op": lambda call: call.op,
    "dtype": _dtypes,
}


def _compare_pieces(calls: dict[int, Call]) -> Difference | None:
    """The piece that a rank has for another one must be as large as that one expects."""
    members = next(iter(calls.values())).members
    gives, wants = {}, {}
    for rank, call in calls.items():
        if (pieces := _pieces(call, len(members))) is None:
            return None
        gives[rank], wants[rank] = pieces
    involved: Counter[int] = Counter()
    for giver in calls:
        for taker in calls:
            given, wanted = gives[giver], wants[taker]
            if given and wanted and given[members.index(taker)] != wanted[members.index(giver)]:
                involved.update((giver, taker))
    if not involved:
        return None
    most = max(involved.values())
    guilty = tuple(sorted(rank for rank, count in involved.items() if count == most))
    has_splits = any(call.splits not in (None, (None, None)) for call in calls.values())
    return Difference("splits" if has_splits else "shape", guilty, calls)


def _pieces(call: Call, n: int) -> tuple[list[int] | None, list[int] | None] | None:
    """How many elements the rank has for each of the n members, and how many it wants from each.

    A side is None where this rank has no buffer for it. None where the call's tensors do not tell.
    """
    spec, tensors = BY_NAME[call.name], list(call.tensors)
    if spec.objects or not spec.buffers:
        return None
    gives = wants = None
    for buffer in spec.buffers:
        count = _count_of_tensors(buffer, call, n)
        if count is None or count > len(tensors):
            return None
        pieces = _pieces_of_buffer(buffer, tensors[:count], call, n)
        tensors = tensors[count:]
        if buffer.gives:
            gives = pieces
        else:
            wants = pieces
    return None if tensors else (gives, wants)


def _count_of_tensors(buffer: BufferSpec, call: Call, n: int) -> int | None:
    """How many tensors this rank passes in the buffer; None where it may be any number."""
    if buffer.layout is Layout.SEVERAL:
        return None
    if buffer.layout is not Layout.LIST:
        return 1
    has_root = call.name in FROM_ROOT | TO_ROOT
    return n if not has_root or call.rank == call.peer else 0


def _pieces_of_buffer(
    buffer: BufferSpec, tensors: list[TensorKind], call: Call, n: int
) -> list[int] | None:
    """How many elements of the buffer belong to each member; None if this rank does not have it."""
    if buffer.layout is Layout.LIST:
        return [kind.numel for kind in tensors] or None
    (kind,) = tensors
    if buffer.layout is Layout.ONE:
        return [kind.numel] * n
    splits = call.splits[buffer.gives] if call.splits else None  # of the output, of the input
    return _split(kind, splits, n)


def _split(kind: TensorKind, splits: tuple[int, ...] | None, n: int) -> list[int]:
    """The elements of each piece: `splits` counts rows, and equal pieces are the default."""
    if not splits or len(splits) != n:
        return [kind.numel // n] * n
    rows = kind.shape[0] if kind.shape else 1
    row = kind.numel // max(1, rows)
    return [count * row for count in splits]


@dataclass
class Split:
    """A collective that its members called from different lines."""

    calls: dict[int, Call]
    after: dict[int, Call] = dataclasses.field(default_factory=dict)  # the next collective
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
        if len(lines) == 1 and len(self.shared) < _MOST_LINES:
            self.shared |= lines
        elif len(lines) > 1 and len(self.splits) < _MOST_LINES:
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
