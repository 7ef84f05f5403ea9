"""Data that a narrower dtype cannot hold, and whose reductions are exact all the same.

An int64 above 2**53 does not survive float64, nor a float64 with 50 bits float32. What is moved is
random bytes, with -0.0, NaNs, infinities and subnormals in front. What is reduced are odd integers
with as many bits as the dtype has, less those that the sum needs.
"""

import math
from collections.abc import Callable

import torch

from collectives.semantics import values
from collectives.semantics.values import Shape

# Reductions that stay exact; BAND, BOR and BXOR do so in integers.
OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX")

# Multipliers that spread a place over 64 bits: large, odd, and otherwise of no meaning.
_SPREAD, _TURN = 0x1E3779B97F4A7C15, 0x2545F4914F6CDD1D

# What the ranks contribute at the first places of "special" data: rank 0 the first number, the
# others the second one.
_TINY, _MOST = "tiny", "most"
_SPECIAL: dict[str, list[tuple[float | str, float | str]]] = {
    "SUM": [(math.nan, 1), (1, math.nan), (math.inf, 1), (math.inf, -math.inf), (-0.0, -0.0)],
    "MIN": [(-math.inf, 1), (math.inf, 1), (1, -math.inf), (_TINY, 1)],
    "MAX": [(math.inf, 1), (-math.inf, 1), (1, math.inf), (0.0, _TINY)],
}
_SPECIAL["SUM"] += [(_TINY, 0.0), (0.0, _TINY), (_MOST, _MOST)]


def moved(code: int, shape: Shape, dtype: torch.dtype) -> torch.Tensor:
    """The data that `code` sends: every bit of it may be set."""
    length = math.prod(shape)
    random = torch.Generator().manual_seed(code)
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=random).bool()
    size = (length * dtype.itemsize,)
    found = torch.randint(0, 256, size, generator=random, dtype=torch.uint8).view(dtype)
    if dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        bits = torch.finfo(dtype)
        tiny = bits.smallest_normal * bits.eps
        numbers = [-0.0, math.nan, math.inf, -math.inf, tiny, -tiny, bits.max, bits.min]
        # At most half of it: short messages of different codes have to differ, too.
        special = torch.tensor(numbers, dtype=torch.float64).to(dtype)[: length // 2]
        found[: len(special)] = special
    return found.view(shape)


def term(
    rank: int, size: int, shape: Shape, dtype: torch.dtype, start: int, op: str
) -> torch.Tensor:
    """What rank `rank` of `size` contributes: odd integers with many bits."""
    return values.in_pieces(_numbers(op, size, dtype, [rank], False), start, shape, dtype)


def reduced(op: str, size: int, shape: Shape, dtype: torch.dtype, start: int) -> torch.Tensor:
    """The exact reduction of all ranks' terms."""
    return values.in_pieces(_numbers(op, size, dtype, range(size), True), start, shape, dtype)


def _numbers(
    op: str, size: int, dtype: torch.dtype, ranks: "range | list[int]", reduces: bool
) -> Callable[[torch.Tensor], torch.Tensor]:
    def numbers(places: torch.Tensor) -> torch.Tensor:
        def of(rank: int) -> torch.Tensor:
            if not dtype.is_complex:
                return _integers(rank, size, places, dtype, op)
            parts = (_integers(rank + turn, size, places, dtype, op) for turn in (0, 64))
            return torch.complex(*(part.double() for part in parts))

        terms = [of(rank) for rank in ranks]
        return values.reduce(op, terms) if reduces else terms[0]

    return numbers


def bits(dtype: torch.dtype) -> int:
    """How many bits of an integer the dtype holds, without the sign."""
    if dtype.is_floating_point or dtype.is_complex:
        return 1 + round(-math.log2(torch.finfo(dtype).eps))
    return min(63, torch.iinfo(dtype).bits - (torch.iinfo(dtype).min < 0))


def _integers(
    rank: int, size: int, places: torch.Tensor, dtype: torch.dtype, op: str
) -> torch.Tensor:
    is_integer = not (dtype.is_floating_point or dtype.is_complex)
    carry = math.ceil(math.log2(size)) if size > 1 else 0
    width = bits(dtype)
    if op == "PRODUCT":  # that of integers wraps around
        width = width - 1 if is_integer else width // size
    elif op in ("SUM", "AVG"):
        width -= carry * (2 if op == "AVG" else 1)
    width = max(width, 2)
    turn = (rank + 1) * _TURN & (2**63 - 1)
    mixed = (places * _SPREAD + turn) ^ (places * _TURN >> 17)
    integers: torch.Tensor = (
        (mixed * _SPREAD >> (63 - width)) & (2**width - 1) | 1 | 2 ** (width - 1)
    )
    # At some places the terms of all ranks are negative, at others none: a maximum that begins with
    # 0 is then wrong, and so is such a minimum.
    is_low = (places % 5 == 0) | ((places % 5 > 1) & ((places + rank) % 3 == 0))
    if not is_integer or torch.iinfo(dtype).min < 0:
        integers = torch.where(is_low, -integers, integers)
    elif op in ("MIN", "MAX"):  # a signed comparison takes those with the highest bit for the least
        integers = torch.where(is_low, integers >> 1, integers)
    return size * integers if op == "AVG" else integers


def special_term(
    rank: int, size: int, shape: Shape, dtype: torch.dtype, start: int, op: str
) -> torch.Tensor:
    """What rank `rank` contributes where the result is no usual number."""
    return _special(shape, dtype, [_pair(pair, rank, dtype) for pair in _SPECIAL[op]], start)


def special_reduced(
    op: str, size: int, shape: Shape, dtype: torch.dtype, start: int
) -> torch.Tensor:
    """The reduction of all ranks' special terms, as IEEE 754 defines it."""
    found = []
    for pair in _SPECIAL[op]:
        terms = [_pair(pair, rank, dtype) for rank in range(size)]
        if op == "SUM":
            total = terms[0]
            for other in terms[1:]:  # not `sum`, which begins with 0: that makes -0.0 0.0
                total += other
            found.append(total)
        else:
            found.append(min(terms) if op == "MIN" else max(terms))
    return _special(shape, dtype, found, start)


def _pair(pair: tuple[float | str, float | str], rank: int, dtype: torch.dtype) -> float:
    number = pair[min(rank, 1)]
    limits = torch.finfo(dtype)
    named = {_TINY: limits.smallest_normal * limits.eps, _MOST: limits.max}
    return named[number] if isinstance(number, str) else number


def _special(shape: Shape, dtype: torch.dtype, numbers: list[float], start: int) -> torch.Tensor:
    length = math.prod(shape)
    turned = [numbers[(start + place) % len(numbers)] for place in range(length)]
    return torch.tensor(turned, dtype=torch.float64).to(dtype).view(shape)
