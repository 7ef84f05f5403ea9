"""Which ranks can have made a value: one that held it, or several whose values reduce to it."""

import functools
import itertools
import math
import operator
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from collectives.pictures.elements import Element, is_number

OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")

# A set of ranks whose values, alone or reduced, give a value.
_Ranks = frozenset[int]


class Sources:
    """`rows` holds the elements of each rank before the call; `ops` are the reductions, if any."""

    def __init__(self, rows: list[list[Element] | None], ops: Sequence[str]):
        self.rows = rows
        self.ops = ops
        self.holders = functools.cache(self._holders)
        self.sets = functools.cache(self._sets)

    @functools.cached_property
    def reductions(self) -> list:
        return [one for op in self.ops for one in reductions(self.rows, op)]

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
        return state_of(rank, ranks, kept), tuple(sorted(ranks))

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
            if place in (None, at) and equal(result, element, error)
        }


def state_of(rank: int, ranks: Collection[int], kept: bool) -> str:
    """The state of an element of this rank whose value these ranks made."""
    if len(ranks) > 1:
        return "reduced"
    if rank not in ranks:
        return "received"
    return "untouched" if kept else "own"


def reductions(rows: list, op: str) -> Iterator[tuple[int, frozenset[int], object, float]]:
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


def is_reduction(op: str, values: Sequence[Element], element: Element) -> bool:
    """Whether the element is the reduction of these, one of each rank."""
    if not all(is_number(one.value) for one in (*values, element)):
        return False
    numbers: list[Any] = [one.value for one in values]
    if op in ("MIN", "MAX"):
        return element.value == {"MIN": min, "MAX": max}[op](numbers)
    results = _reduce(op, numbers, len(numbers))
    return any(equal(one, element, _error(op, values, one)) for one in results)


def _error(op: str, values: Sequence[Element], result) -> float:
    """How far rounding may have moved a result."""
    numbers: list[Any] = [one.value for one in values]
    size = abs(result) if op == "PRODUCT" else sum(map(abs, numbers))
    return len(values) * _rounding(values[0].dtype, numbers[0]) * size


def equal(result, element: Element, error: float) -> bool:
    """Whether a computed result is the element's value, within the rounding error."""
    value, dtype = element.value, element.dtype
    if isinstance(value, bool):  # a sum of bits is a bit
        return bool(result) == value
    if isinstance(value, int) and isinstance(result, int):  # too large a number wraps around
        return (result - value) % 2 ** (8 * dtype.itemsize) == 0 if dtype else result == value
    return result == value or abs(result - value) <= error
