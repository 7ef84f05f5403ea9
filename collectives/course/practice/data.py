"""The tensors that the cases of an exercise are made of.

>>> moved(2, 3), added(2, 3)
(tensor([21, 22, 23]), tensor([100, 200, 300]))
"""

import random
from collections.abc import Iterator

import torch

from collectives.words import counted

# What an output of whole numbers holds before the call: no result looks like it.
POISON = -7


def moved(rank: int, length: int, call: int = 0) -> torch.Tensor:
    """For calls that move data: the tens name the rank and the ones the position, from 1."""
    return _varied(torch.arange(1, length + 1) + 10 * rank + _offset(rank, call), call)


def added(rank: int, length: int, call: int = 0) -> torch.Tensor:
    """For calls that add: each rank has a digit of its own, up to eight ranks."""
    return _varied((torch.arange(1, length + 1) % 9 + _offset(rank, call)) * 10**rank, call)


def _offset(rank: int, call: int) -> int:
    """After the first call, whose numbers a reader sees in the text, nobody can tell from its own
    tensor what another rank has. It stays below the distance of two ranks.
    """
    return random.Random(f"rank {rank}, call {call}").randrange(9) if call else 0


def _varied(x: torch.Tensor, call: int) -> torch.Tensor:
    """No call has the values of another one, and each refutes programs that pass the first: the
    second has negative numbers, which fall with the rank, the third fractions in float64, and the
    fifth numbers that float32 does not hold.
    """
    if call == 1:
        return -x
    if call == 2:
        return x.double() + 0.25
    return x + (2**40 if call == 4 else 100 * call)


def poison(like: torch.Tensor) -> torch.Tensor:
    """An output before the call: nan, as `torch.empty` may give, or a whole number."""
    return torch.full_like(like, torch.nan if like.is_floating_point() else POISON)


def elements(length: int) -> str:
    return counted(length, "element")


def runs(n: int = 1) -> Iterator[tuple[int, int, str]]:
    """The calls: number, length and label. Two calls of one length follow each other: a message
    that the first leaves behind spoils the second. More than three ranks have these two alone.
    """
    for call, length in enumerate((2, 2, 1, 0, 1000) if n <= 3 else (2, 2)):
        yield call, length, f"{elements(length)}, run {call + 1}"


def at_each_root(n: int, name: str) -> Iterator[tuple[int, int, int, str]]:
    """All calls with root 0, and one with each other root."""
    for call, length, label in runs(n):
        yield 0, call, length, f"{name} 0, {label}"
    for root in range(1, n):
        yield root, 5 + root, 2, f"{name} {root}, 2 elements"
