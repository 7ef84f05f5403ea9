"""What every subset of the ranks gives under a reduction, to compare with a call's result."""

import functools
import itertools
import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any

from collectives.pictures.elements import Element, is_number

OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")


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
