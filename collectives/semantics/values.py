"""Inputs whose reductions are exact in every dtype, and the results of collectives in closed form.

Everything is computed in integers, piece by piece, and becomes a tensor of the dtype at the end: no
rounding of ours can hide or cause a difference. Each reduction of the same inputs has a different
result, so that an AVG that sums is noticed. No two ranks send the same data. Data that a narrower
dtype cannot hold is in wide_values.py.
"""

import functools
import math
from collections.abc import Callable

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

# So many elements are computed at a time: a long message needs little more memory than itself.
_PIECE = 2**18


def moved(code: int, shape: Shape, dtype: torch.dtype) -> torch.Tensor:
    """The data that `code` (a rank, or a number for a pair of ranks) sends.

    It is different for every code, and at every place of a short tensor.
    """

    def numbers(places: torch.Tensor) -> torch.Tensor:
        if dtype is torch.bool:
            return ((code + 1) >> places % 11) & 1
        if dtype.itemsize == 1:
            # As bytes: some floats of 8 bits have powers of two only. No byte below 113 is a NaN.
            return ((5 * code + places + 1) % 113).to(torch.uint8).view(dtype)
        limit = 251 if dtype.itemsize == 2 else 65521  # integers up to 256 are exact in bfloat16
        found = (100 * code + places + 1) % limit
        return torch.complex(found.double(), -found.double()) if dtype.is_complex else found

    return in_pieces(numbers, 0, shape, dtype)


def term(rank: int, size: int, shape: Shape, dtype: torch.dtype, start: int = 0) -> torch.Tensor:
    """What rank `rank` of `size` contributes to a reduction.

    These are the elements from `start` on of one long array.
    """

    def numbers(places: torch.Tensor) -> torch.Tensor:
        if not dtype.is_complex:
            return _elements(rank, size, places, dtype)
        parts = (_elements(rank, size, places + shift, torch.float32) for shift in (0, 1))
        return torch.complex(*(part.double() for part in parts))

    return in_pieces(numbers, start, shape, dtype)


def has_meaning(op: str | None, dtype: torch.dtype) -> bool:
    """Whether the reduction is defined for the dtype.

    BAND, BOR and BXOR are not for floats and complex numbers; MIN and MAX not for complex numbers.
    """
    if op in BITWISE:
        return not (dtype.is_floating_point or dtype.is_complex)
    return not (op in ("MIN", "MAX") and dtype.is_complex)


def reduced(op: str, size: int, shape: Shape, dtype: torch.dtype, start: int = 0) -> torch.Tensor:
    """The reduction of all ranks' terms."""

    def numbers(places: torch.Tensor) -> torch.Tensor:
        if not dtype.is_complex:
            return reduce(op, [_elements(rank, size, places, dtype) for rank in range(size)])
        shape = (len(places),)
        first = int(places[0])
        wide = torch.complex128
        return reduce(op, [term(rank, size, shape, wide, first) for rank in range(size)])

    return in_pieces(numbers, start, shape, dtype)


def in_pieces(
    numbers: Callable[[torch.Tensor], torch.Tensor], start: int, shape: Shape, dtype: torch.dtype
) -> torch.Tensor:
    """The numbers at the places from `start` on. Integers that are too large wrap around."""
    found = torch.empty(math.prod(shape), dtype=dtype)
    for first in range(0, len(found), _PIECE):
        piece = found[first : first + _PIECE]
        piece.copy_(numbers(torch.arange(start + first, start + first + len(piece))))
    return found.view(shape)


def reduce(op: str, terms: list[torch.Tensor]) -> torch.Tensor:
    """In 64 bits. Of bools, a sum is true if any is, and an average if all are."""
    total = functools.reduce(torch.add, terms)
    if op == "AVG":
        return total / len(terms) if total.is_complex() else total // len(terms)
    if op == "PREMUL_SUM":
        return FACTOR * total
    binary: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
        "SUM": torch.add,
        "PRODUCT": torch.mul,
        "MIN": torch.minimum,
        "MAX": torch.maximum,
        "BAND": torch.bitwise_and,
        "BOR": torch.bitwise_or,
        "BXOR": torch.bitwise_xor,
    }
    return functools.reduce(binary[op], terms)


def _elements(rank: int, size: int, places: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What a rank contributes at each place: the same small number as all others, or `size` more.

    At each place another rank has `size` more. So the sum is a multiple of `size`, and the average
    is exact in integers too: 2 ranks hold 1 and 3, then 4 and 2. At every fifth place, three or
    more ranks hold the integers 1, 2 and `size` instead: otherwise BOR or BXOR would give the same
    as MAX. Before it, all numbers are negative, where the dtype has such: a maximum that begins
    with 0 is then wrong.
    """
    own = places % size == rank
    if dtype is torch.bool:
        return ((places % 5 == 4) | (own == (places % 2 == 0))).long()
    if "e8m0" in str(dtype):  # powers of two only
        return 2 ** (places % 3)
    # Products stay exact. In floats of 8 bits, which have 1, 1.25, 1.5 and 1.75 times a power of
    # two, only those of 2 and 4 ranks do.
    is_exact = size in (2, 4) or (size <= 8 and "float8" not in str(dtype))
    found = 1 + (places % 2 if is_exact else 0 * places) + size * own
    if not dtype.is_floating_point and size > 2:
        turn = (rank + places) % size
        other = torch.where(turn == 0, 2, torch.where(turn == 1, size, 1))
        found = torch.where(places % 5 == 4, other, found)
    return torch.where(places % 5 == 3, -found, found) if dtype.is_signed else found
