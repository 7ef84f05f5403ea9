"""Which rank each value came from, of what the ranks held before a call and after it.

If every value is as the call promises, the promise says where it came from: the record of the call
tells which ranks give and which get, and which buffers have a piece for each rank. Else the call
went wrong, or nothing is known of it, and values are compared: a value that only one rank held came
from that rank, and a reduced value from the ranks whose values reduce to it. If more than one
answer fits, the origin is unknown.
"""

import functools
import itertools
import math
import operator
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from collectives.pictures.elements import Element, elements, is_number, length
from collectives.semantics.calls import FROM_ROOT, TO_ROOT, BufferSpec, CallSpec, Layout
from collectives.words import runs

MOST_RANKS = 8  # more colours cannot be told apart, and there are 255 subsets of ranks to try
MOST_ELEMENTS = 32  # of one rank; more cannot be read

# The elements that one element is made from, as (rank, place): one of each rank in a reduction.
Made = list[tuple[int, int]]

_OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")

# A set of ranks whose values, alone or reduced, give a value.
_Ranks = frozenset[int]

# The states of a cell, and what they mean.
STATES = {
    "own": "the rank's own value",
    "untouched": "as it was before, in the same place",
    "overwritten": "replaced by the call",
    "padding": "not data: it makes all buffers equally long",
    "received": "another rank's value",
    "reduced": "made from the values of the ranks named",
    "undefined": "no rank's values give this",
    "unknown": "several ranks or sums give this value",
}


@dataclass(frozen=True)
class PictureCell:
    """One element of one rank."""

    text: str  # the value, short enough for a cell
    piece: int  # which of the rank's tensors it lies in, from 0
    state: str  # one of STATES
    ranks: tuple[int, ...] = ()  # whose values it is made from; empty if that is not certain
    line: int = 0  # the row of a matrix

    @property
    def label(self) -> str:
        """The ranks in short: "r2", "r0-r2, r4"; "r?" if not known, "" if there are none."""
        if not self.ranks:
            return "" if self.state == "undefined" else "r?"
        return ", ".join(f"r{run.replace('-', '-r')}" for run in runs(self.ranks))


Row = tuple[PictureCell, ...] | None  # None: the rank has no such buffer
# Of each element that each rank has before a call, the ranks that an earlier call made it from.
Carried = list[list[tuple[int, ...]]]


@dataclass(frozen=True)
class Origins:
    """What a picture shows, as a figure or as text."""

    op: str | None
    root: int | None
    before: tuple[Row, ...] = ()
    after: tuple[Row, ...] = ()
    notes: tuple[str, ...] = ()

    def states(self) -> list[str]:
        """The states that occur, in the order of STATES."""
        seen = {cell.state for row in self.before + self.after for cell in row or ()}
        return [state for state in STATES if state in seen]


@dataclass(frozen=True)
class ExpectedCall:
    """A collective of all ranks but `absent`. `splits`: by rank, as `Call.splits` has them."""

    spec: CallSpec
    root: int | None = None
    splits: Sequence[tuple | None] = ()
    absent: Sequence[int] = ()

    def lengths(self, rank: int, entry, ranks: int, gives: bool) -> list[int]:
        """How many elements the pieces of a rank's buffer have, in order."""
        buffer = self._buffer(gives)
        if entry is None or buffer.layout is Layout.ONE:
            return [length(entry)]
        if buffer.layout is Layout.LIST:
            return [length(part) for part in entry]
        split = self.splits[rank] if self.splits else None
        sizes = split[1 if gives else 0] if split else None
        sizes = sizes or [1] * (ranks - len(self.absent))
        return [length(entry) * size // max(1, sum(sizes)) for size in sizes]

    def made(self, given: list, rank: int) -> list[Made] | None:
        """What each element that the rank gets is made from; None if it gets nothing."""
        if rank in self.absent or (self.spec.name in TO_ROOT and rank != self.root):
            return None
        members = [rank for rank in range(len(given)) if rank not in self.absent]
        givers = members if self.spec.name not in FROM_ROOT else [self.root or 0]
        pieces = [self._piece(giver, given, rank) for giver in givers]
        if self.spec.reduces:
            return [list(column) for column in zip(*pieces, strict=True)]
        return [[element] for piece in pieces for element in piece]

    def _piece(self, giver: int, given: list, rank: int) -> list[tuple[int, int]]:
        """The elements that `giver` has for a rank."""
        ends = [0, *accumulate(self.lengths(giver, given[giver], len(given), gives=True))]
        place = rank - sum(one < rank for one in self.absent)
        piece = 0 if self._buffer(gives=True).layout is Layout.ONE else place
        return [(giver, place) for place in range(ends[piece], ends[piece + 1])]

    def _buffer(self, gives: bool) -> BufferSpec:
        return next(one for one in self.spec.buffers if (one.gives if gives else one.gets))


def trace(
    before: list,
    after: list,
    *,
    op: str | None = None,
    root: int | None = None,
    in_place: bool = False,
    expected: ExpectedCall | None = None,
    asked: Sequence[str] = (),
    earlier: Sequence[Sequence[Row]] = (),
    padding: float | None = None,
) -> Origins | None:
    """Find where every element of `after` came from.

    `before` and `after` have one entry for each rank: a tensor of any shape and dtype, a list of
    tensors, or None if the rank has no such buffer. `in_place`: whether `after` has the same
    buffers as `before`. `expected`: what the call should have done, if its ranks agree. `asked`:
    the reductions, if they do not. `earlier`: what earlier calls of the run left on the ranks: a
    call that passes one of these results on shows where they came from. `padding`: the value that
    fills the end of a buffer. None if there are too many ranks or elements, or for another
    reduction.
    """
    lengths = [length(entry) for entry in (*before, *after)]
    ops = (op,) if op else tuple(asked)
    if len(before) > MOST_RANKS or max(lengths) > MOST_ELEMENTS or not {*ops} <= {*_OPS}:
        return None
    old, new = _elements(before, expected, gives=True), _elements(after, expected, gives=False)
    kept = _kept(expected, before, old, new, op)
    sources = _Sources(old, ops)
    carried = None if ops else _carried(old, earlier)
    pads = {(rank, place) for rank, row in enumerate(old) for place in _pads(row or [], padding)}

    def cell_before(rank, place, element):
        lost = in_place and new[rank] is not None
        if lost and (made := kept[rank]):
            lost = made[place] != [(rank, place)]
        elif lost:
            lost = _key_at(new[rank], place) != element.key
        state = "overwritten" if lost else "padding" if (rank, place) in pads else "own"
        ranks = carried[rank][place] if carried else (rank,)
        return PictureCell(element.text, element.piece, state, ranks, element.line)

    def cell_after(rank, place, element):
        if made := kept[rank]:
            origin = _as_expected(rank, place, made[place], op, old, in_place)
            if carried:
                ((source, at),) = made[place]
                origin = origin[0], carried[source][at]
            if {*made[place]} <= pads:
                origin = "padding", origin[1]
        else:
            stayed = in_place and _key_at(old[rank], place) == element.key
            # subtle: try the elements at the same place first if the reduction is in place. Sums
            # of small numbers at other places may be equal by chance.
            same_place = place if ops and in_place else None
            origin = sources.origin(rank, element, same_place, stayed)
        return PictureCell(element.text, element.piece, *origin, element.line)

    rows = _rows(old, cell_before), _rows(new, cell_after)
    return Origins(op, root, *rows, notes=tuple(_notes(op, new, rows[1])))


def _elements(
    entries: list, expected: ExpectedCall | None, gives: bool
) -> list[list[Element] | None]:
    return [
        elements(entry, expected.lengths(rank, entry, len(entries), gives) if expected else ())
        for rank, entry in enumerate(entries)
    ]


def _kept(
    expected: ExpectedCall | None, before: list, old: list, new: list, op: str | None
) -> list[list[Made] | None]:
    """By rank, what its elements are made from; None for a rank that was promised nothing.

    If one value is not as promised, nothing is said of any rank: the call went wrong.
    """
    nothing: list[list[Made] | None] = [None] * len(old)
    if expected is None:
        return nothing
    try:
        by_rank = [expected.made(before, rank) for rank in range(len(old))]
    except (ValueError, IndexError, TypeError):  # the buffers of the ranks do not fit together
        return nothing
    for row, made in zip(new, by_rank, strict=True):
        if made is None:
            continue
        if row is None or len(row) != len(made):
            return nothing
        for element, sources in zip(row, made, strict=True):
            values = [old[rank][place] for rank, place in sources]
            if not (_is_reduction(op, values, element) if op else values[0].key == element.key):
                return nothing
    return by_rank


def _pads(row: list[Element], value: float | None) -> Iterator[int]:
    """The places at the end of a rank's buffer that have this value."""
    for place in reversed(range(len(row))):
        if value is None or row[place].value != value:
            return
        yield place


def _carried(old: list, earlier: Sequence[Sequence[Row]]) -> Carried | None:
    """What is known of the values before a call: they are the result of an earlier one."""
    texts = [[element.text for element in row or ()] for row in old]
    for rows in reversed(earlier):
        if texts == [[cell.text for cell in row or ()] for row in rows]:
            return [[cell.ranks for cell in row or ()] for row in rows]
    return None


def _as_expected(
    rank: int, place: int, made: Made, op: str | None, old: list, in_place: bool
) -> tuple[str, tuple[int, ...]]:
    """The state of an element and its ranks; of a minimum or maximum, those that had it."""
    if op in ("MIN", "MAX"):
        choose = {"MIN": min, "MAX": max}[op]
        found = choose(old[source][at].value for source, at in made)
        made = [(source, at) for source, at in made if old[source][at].value == found]
    ranks = tuple(source for source, _ in made)
    return _state_of(rank, ranks, in_place and made == [(rank, place)]), ranks


def _key_at(row: list[Element] | None, place: int):
    return row[place].key if row is not None and place < len(row) else None


def _rows(rows: list[list[Element] | None], make_cell: Callable) -> tuple[Row, ...]:
    return tuple(
        row if row is None else tuple(make_cell(rank, *place) for place in enumerate(row))
        for rank, row in enumerate(rows)
    )


def _notes(
    op: str | None, new: list[list[Element] | None], after: tuple[Row, ...]
) -> Iterator[str]:
    cells = [cell for row in after for cell in row or ()]
    if not all(element.traceable for row in new for element in row or ()):
        yield "In < >: an object, whose way cannot be seen."
    if op in ("MIN", "MAX"):
        yield f"{op}: one rank's value, copied."
        if any(cell.state == "reduced" for cell in cells):
            yield "Stripes: several ranks had this value."


class _Sources:
    """Which ranks can have made a value: one that held it, or several whose values reduce to it.

    `rows` holds the elements of each rank before the call; `ops` are the reductions, if any.
    """

    def __init__(self, rows: list[list[Element] | None], ops: Sequence[str]):
        self.rows = rows
        self.ops = ops
        self.holders = functools.cache(self._holders)
        self.sets = functools.cache(self._sets)

    @functools.cached_property
    def reductions(self) -> list:
        return [one for op in self.ops for one in _reductions(self.rows, op)]

    def origin(
        self, rank: int, element: Element, place: int | None, kept: bool
    ) -> tuple[str, tuple[int, ...]]:
        """The state of a rank's element, and the ranks that made it.

        Elements at other places are tried only if those at `place` cannot have made it (None: all
        places at once). `kept`: the element was there before the call.
        """
        if not element.traceable:
            return "unknown", ()
        if kept and self.holders(element, None) == {frozenset({rank})}:
            return "untouched", (rank,)
        sets = self.sets(element, place) or self.sets(element, None)
        if not sets:
            return "undefined", ()
        if len(sets) > 1:
            return "untouched" if kept else "unknown", ()
        (ranks,) = sets
        return _state_of(rank, ranks, kept), tuple(sorted(ranks))

    def _holders(self, element: Element, place: int | None) -> set[_Ranks]:
        here = slice(None) if place is None else slice(place, place + 1)
        return {
            frozenset({rank})
            for rank, row in enumerate(self.rows)
            if any(other.key == element.key for other in (row or [])[here])
        }

    def _sets(self, element: Element, place: int | None) -> set[_Ranks]:
        if not is_number(element.value):
            return self.holders(element, place)
        return self.holders(element, place) | {
            ranks
            for at, ranks, result, error in self.reductions
            if place in (None, at) and _equal(result, element, error)
        }


def _state_of(rank: int, ranks: Collection[int], kept: bool) -> str:
    """The state of an element of this rank whose value these ranks made."""
    if len(ranks) > 1:
        return "reduced"
    if rank not in ranks:
        return "received"
    return "untouched" if kept else "own"


def _reductions(rows: list, op: str) -> Iterator[tuple[int, frozenset[int], object, float]]:
    """Yield (place, ranks, result, rounding error) for each place and set of two or more ranks.

    subtle: MIN and MAX are left out, because they make no new value. They pass one rank's value on,
    which is found like any other value that moved.
    """
    for place in range(max(map(len, filter(None, rows)), default=0)):
        column = {
            rank: row[place]
            for rank, row in enumerate(rows)
            if row and place < len(row) and is_number(row[place].value)
        }
        for size in range(2, len(column) + 1):
            for ranks in itertools.combinations(column, size):
                values = [column[rank] for rank in ranks]
                for result in _reduce(op, [one.value for one in values], len(rows)):
                    yield place, frozenset(ranks), result, _error(op, values, result)


def _reduce(op: str, values: list, world_size: int) -> list:
    whole = all(isinstance(value, int) for value in values)
    if op == "SUM":
        return [sum(values)]
    if op == "PRODUCT":
        return [math.prod(values)]
    if op == "AVG":  # divided by these ranks, or by all, if the others added 0
        divide = operator.floordiv if whole else operator.truediv
        return [divide(sum(values), count) for count in sorted({len(values), world_size})]
    bitwise = {"BAND": operator.and_, "BOR": operator.or_, "BXOR": operator.xor}
    return [functools.reduce(bitwise[op], values)] if op in bitwise and whole else []


def _rounding(dtype, value) -> float:
    """The relative error of one operation: 0 for whole numbers."""
    if isinstance(value, int):
        return 0.0
    if dtype is None:
        return math.ulp(1.0) / 2
    import torch

    return torch.finfo(dtype).eps / 2


def _is_reduction(op: str, values: Sequence[Element], element: Element) -> bool:
    """Whether the element is the reduction of these, one of each rank."""
    if not all(is_number(one.value) for one in (*values, element)):
        return False
    numbers: list[Any] = [one.value for one in values]
    if op in ("MIN", "MAX"):
        return element.value == {"MIN": min, "MAX": max}[op](numbers)
    results = _reduce(op, numbers, len(numbers))
    return any(_equal(one, element, _error(op, values, one)) for one in results)


def _error(op: str, values: Sequence[Element], result) -> float:
    """How far rounding may have moved a result."""
    numbers: list[Any] = [one.value for one in values]
    size = abs(result) if op == "PRODUCT" else sum(map(abs, numbers))
    return len(values) * _rounding(values[0].dtype, numbers[0]) * size


def _equal(result, element: Element, error: float) -> bool:
    """Whether a computed result is the element's value, within the rounding error."""
    value, dtype = element.value, element.dtype
    if isinstance(value, bool):  # a sum of bits is a bit
        return bool(result) == value
    if isinstance(value, int) and isinstance(result, int):  # too large a number wraps around
        return (result - value) % 2 ** (8 * dtype.itemsize) == 0 if dtype else result == value
    return result == value or abs(result - value) <= error
