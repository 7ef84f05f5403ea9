"""Inputs whose reductions are exact in every dtype, and the results of collectives in closed form.

Everything is computed with Python's integers and becomes a tensor at the end: no rounding of ours
can hide or cause a difference. Each reduction of the same inputs has a different result, so that an
AVG that sums is noticed. No two ranks send the same data.
"""

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import torch

# In the order of the grid. New floats of 8 bits appear now and then: all are taken.
_NAMES = (
    *(f"{kind}{bits}" for kind in ("uint", "int") for bits in (8, 16, 32, 64)),
    *("float16", "bfloat16", "float32", "float64", "bool", "complex64", "complex128"),
    *sorted(name for name in dir(torch) if name.startswith("float8_")),
)
DTYPES = {name: getattr(torch, name) for name in _NAMES}

BITWISE = ("BAND", "BOR", "BXOR")

Shape = tuple[int, ...]

# What PREMUL_SUM multiplies each rank's tensor by before it sums.
FACTOR = 2


def moved(code: int, shape: Shape, dtype: torch.dtype) -> torch.Tensor:
    """The data that `code` (a rank, or a number for a pair of ranks) sends.

    It is different for every code, and at every place.
    """
    places = range(math.prod(shape))
    if dtype is torch.bool:
        bits = [(code + 1) >> place & 1 for place in places]
        return torch.tensor(bits, dtype=dtype).reshape(shape)
    if dtype.itemsize == 1:
        # As bytes: some floats of 8 bits have powers of two only. No byte below 113 is a NaN.
        numbers = [(5 * code + place + 1) % 113 for place in places]
        return torch.tensor(numbers, dtype=torch.uint8).view(dtype).reshape(shape)
    limit = 251 if dtype.itemsize == 2 else 65521  # integers up to 256 are exact in bfloat16
    numbers = [(100 * code + place + 1) % limit for place in places]
    return tensor([complex(x, -x) if dtype.is_complex else x for x in numbers], shape, dtype)


def term(rank: int, size: int, shape: Shape, dtype: torch.dtype, start: int = 0) -> torch.Tensor:
    """What rank `rank` of `size` contributes to a reduction.

    These are the elements from `start` on of one long array.
    """
    places = range(start, start + math.prod(shape))
    return tensor([_element(rank, size, place, dtype) for place in places], shape, dtype)


def has_meaning(op: str | None, dtype: torch.dtype) -> bool:
    """Whether the reduction is defined for the dtype.

    BAND, BOR and BXOR are not for floats and complex numbers; MIN and MAX not for complex numbers.
    """
    if op in BITWISE:
        return not (dtype.is_floating_point or dtype.is_complex)
    return not (op in ("MIN", "MAX") and dtype.is_complex)


def reduced(op: str, size: int, shape: Shape, dtype: torch.dtype, start: int = 0) -> torch.Tensor:
    """The reduction of all ranks' terms."""
    columns = [
        [_element(rank, size, place, dtype) for rank in range(size)]
        for place in range(start, start + math.prod(shape))
    ]
    return tensor([_reduce(op, column) for column in columns], shape, dtype)


def tensor(numbers: list[Any], shape: Shape, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of these numbers. Integers that are too large wrap around, as in the machine."""
    if not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool):
        least, count = torch.iinfo(dtype).min, 2 ** (8 * dtype.itemsize)
        numbers = [(x - least) % count + least for x in numbers]
    return torch.tensor(numbers, dtype=dtype).reshape(shape)


def _element(rank: int, size: int, place: int, dtype: torch.dtype) -> Any:
    """What a rank contributes at a place: the same small number as all others, or `size` more.

    At each place another rank has `size` more. So the sum is a multiple of `size`, and the average
    is exact in integers too: 2 ranks hold 1 and 3, then 4 and 2. At every fifth place, three or
    more ranks hold the integers 1, 2 and `size` instead: otherwise BOR or BXOR would give the same
    as MAX.
    """
    if dtype is torch.bool:
        return True if place % 5 == 4 else (place % size == rank) == (place % 2 == 0)
    if dtype.is_complex:
        return complex(*(_element(rank, size, place + shift, torch.float32) for shift in (0, 1)))
    if "e8m0" in str(dtype):  # powers of two only
        return 2 ** (place % 3)
    if not dtype.is_floating_point and size > 2 and place % 5 == 4:
        return {0: 2, 1: size}.get((rank + place) % size, 1)
    # Products stay exact. In floats of 8 bits, which have 1, 1.25, 1.5 and 1.75 times a power of
    # two, only those of 2 and 4 ranks do.
    is_exact = size in (2, 4) or (size <= 8 and "float8" not in str(dtype))
    small = 1 + place % 2 if is_exact else 1
    return small + size if place % size == rank else small


def _reduce(op: str, column: list[Any]) -> Any:
    """In Python's numbers. Of bools, a sum is true if any is, and an average if all are."""
    total = sum(column)
    if op == "AVG":
        return total / len(column) if isinstance(total, complex) else total // len(column)
    if op == "PREMUL_SUM":
        return FACTOR * total
    binary: dict[str, Callable[[Any, Any], Any]] = {
        "SUM": operator.add,
        "PRODUCT": operator.mul,
        "MIN": min,
        "MAX": max,
        "BAND": operator.and_,
        "BOR": operator.or_,
        "BXOR": operator.xor,
    }
    return functools.reduce(binary[op], column)
