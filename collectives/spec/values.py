"""Inputs whose reductions are exact in every dtype, and the closed forms of what collectives make of them.

Integers stand for the elements until the end, so that no rounding of ours can hide or cause a difference. Every reduction of the
same inputs has another result, so that one which does another's work is noticed; and no two ranks send the same.
"""

import functools
import math
import operator

import torch

# In the order of the grid. What a version of torch lacks is left out; floats of 8 bits get new members now and then.
_NAMES = (
    *(f"{kind}{bits}" for kind in ("uint", "int") for bits in (8, 16, 32, 64)),
    *("float16", "bfloat16", "float32", "float64", "bool", "complex64", "complex128"),
    *sorted(name for name in dir(torch) if name.startswith("float8_")),
)
DTYPES = {
    name: getattr(torch, name)
    for name in _NAMES
    if isinstance(getattr(torch, name, None), torch.dtype)
}

BITWISE = ("BAND", "BOR", "BXOR")

# What PREMUL_SUM multiplies each rank's tensor by before it sums.
FACTOR = 2


def moved(code: int, shape: tuple, dtype: torch.dtype) -> torch.Tensor:
    """The data that `code` (a rank, or a pair of ranks) sends: different for every code, and at every place."""
    places = range(math.prod(shape))
    if dtype is torch.bool:
        return torch.tensor([(code + 1) >> place & 1 for place in places], dtype=dtype).reshape(
            shape
        )
    if (
        dtype.itemsize == 1
    ):  # as bits: some floats of 8 bits know powers of two only. Below 113 none of them is a NaN.
        return (
            torch.tensor([(5 * code + place + 1) % 113 for place in places], dtype=torch.uint8)
            .view(dtype)
            .reshape(shape)
        )
    limit = 251 if dtype.itemsize == 2 else 65521  # integers up to 256 are exact in bfloat16
    numbers = [(100 * code + place + 1) % limit for place in places]
    return tensor([complex(x, -x) if dtype.is_complex else x for x in numbers], shape, dtype)


def term(rank: int, size: int, shape: tuple, dtype: torch.dtype, start: int = 0) -> torch.Tensor:
    """What rank `rank` of `size` contributes to a reduction: the elements from `start` on of one long array."""
    return tensor(
        [_element(rank, size, place, dtype) for place in range(start, start + math.prod(shape))],
        shape,
        dtype,
    )


def has_meaning(op: str | None, dtype: torch.dtype) -> bool:
    """Whether the reduction is defined: numbers with a fraction have no bits of their own, complex ones have no order."""
    if op in BITWISE:
        return not (dtype.is_floating_point or dtype.is_complex)
    return not (op in ("MIN", "MAX") and dtype.is_complex)


def reduced(op: str, size: int, shape: tuple, dtype: torch.dtype, start: int = 0) -> torch.Tensor:
    """The reduction of all ranks' terms."""
    columns = [
        [_element(rank, size, place, dtype) for rank in range(size)]
        for place in range(start, start + math.prod(shape))
    ]
    return tensor([_reduce(op, column, dtype is torch.bool) for column in columns], shape, dtype)


def tensor(numbers: list, shape: tuple, dtype: torch.dtype) -> torch.Tensor:
    """The numbers in a dtype; integers that are too large wrap around, as they do in the machine."""
    if not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool):
        numbers = [
            (x - torch.iinfo(dtype).min) % 2 ** (8 * dtype.itemsize) + torch.iinfo(dtype).min
            for x in numbers
        ]
    return torch.tensor(numbers, dtype=dtype).reshape(shape)


def _element(rank: int, size: int, place: int, dtype: torch.dtype):
    """All ranks hold the same small number, one rank (another one at each place) that number plus `size`.

    So the sum is a multiple of `size`, and the average exact in integers too: 2 ranks hold 1 and 3, then 4 and 2. Three ranks or
    more also hold 1, 2 and `size` at some places, in integers: else BOR or BXOR could not be told from MAX.
    """
    if dtype is torch.bool:
        return True if place % 5 == 4 else (place % size == rank) == (place % 2 == 0)
    if dtype.is_complex:
        return complex(*(_element(rank, size, place + shift, torch.float32) for shift in (0, 1)))
    if "e8m0" in str(dtype):  # powers of two only
        return 2 ** (place % 3)
    if not dtype.is_floating_point and size > 2 and place % 5 == 4:
        return {0: 2, 1: size}.get((rank + place) % size, 1)
    # Products stay exact: in floats of 8 bits, which know 1, 1.25, 1.5 and 1.75 times a power of two, only those of 2 and 4 ranks.
    small = 1 + place % 2 if size in (2, 4) or (size <= 8 and "float8" not in str(dtype)) else 1
    return small + size if place % size == rank else small


def _reduce(op: str, column: list, is_bool: bool):
    if is_bool:  # one bit: a sum is "any", a product is "all"; an average, as integers are divided, is "all" too
        names = {
            "SUM": any,
            "PREMUL_SUM": any,
            "MAX": any,
            "BOR": any,
            "BXOR": lambda bits: sum(bits) % 2 == 1,
        }
        return names.get(op, all)(column)
    if op in ("MIN", "MAX"):
        return {"MIN": min, "MAX": max}[op](column)
    if op == "AVG":
        whole = sum(column) / len(column)
        return whole if isinstance(whole, complex) else sum(column) // len(column)
    if op == "PREMUL_SUM":
        return FACTOR * sum(column)
    binary = {
        "SUM": operator.add,
        "PRODUCT": operator.mul,
        "BAND": operator.and_,
        "BOR": operator.or_,
        "BXOR": operator.xor,
    }
    return functools.reduce(binary[op], column)
