"""The tensors that the cases are made of."""

from collections.abc import Iterator

import torch

# What an output holds before the call: no result looks like it.
POISON = -7


def moved(rank: int, length: int, call: int = 0) -> torch.Tensor:
    """For calls that move data: the tens name the rank and the ones the position, from 1.

    Each call has other values, so that a message of the last one is recognized.
    """
    return torch.arange(1, length + 1) + 10 * rank + 100 * call


def added(rank: int, length: int, call: int = 0) -> torch.Tensor:
    """For calls that add: each rank has a digit of its own, up to eight ranks."""
    return torch.arange(1, length + 1) % 9 * 10**rank + 10**8 * call


def poison(length: int) -> torch.Tensor:
    return torch.full((length,), POISON)


def elements(length: int) -> str:
    return "1 element" if length == 1 else f"{length} elements"


def runs() -> Iterator[tuple[int, int, str]]:
    """The calls: number, length and label. Two calls of one length follow each other: a message
    that the first leaves behind spoils the second.
    """
    for call, length in enumerate((2, 2, 1, 0, 1000)):
        yield call, length, f"{elements(length)}, run {call + 1}"


def at_each_root(n: int, name: str) -> Iterator[tuple[int, int, int, str]]:
    for root in range(n):
        for call, length, label in runs():
            yield root, call, length, f"{name} {root}, {label}"
