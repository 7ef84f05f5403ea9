"""Recursive doubling: unlike in the tree, both ranks of a pair send, so nobody waits for a root.

all_reduce, 4 ranks, what each rank holds of the first element:

    before   1     10    100   1000
    step 0   11    11    1100  1100    0 <-> 1, 2 <-> 3
    step 1   1111  1111  1111  1111    0 <-> 2, 1 <-> 3

log2(n) steps instead of the tree's 2 log2(n), but every rank sends the whole tensor in each.
"""

from collections.abc import Callable, Iterator

import numpy as np

from collectives.algorithms.schedule import (
    Number,
    Rounds,
    Run,
    Schedule,
    Step,
    among,
    doubling,
    when,
)


def all_reduce(rank: Number, n: int) -> Iterator[Step | Rounds]:
    return for_any_number(_all_reduce, rank, n)


def _all_reduce(rank: Number, n: int) -> Iterator[Step]:
    for distance in doubling(n):
        # subtle: rank 0 adds 1 + 10 and rank 1 adds 10 + 1. All ranks have the same bits only
        # because addition is commutative, and max(0.0, -0.0) is not: the executor therefore
        # always puts the lower rank's part first.
        partner = rank ^ distance
        yield Step(to=partner, source=partner, reduce=True)


def all_gather(rank: Number, n: int) -> Iterator[Step]:
    """For n a power of two. Neighbouring blocks of 1, 2, 4, ... pieces change hands."""
    for distance in doubling(n):
        block = rank // distance * distance
        partner = rank ^ distance
        yield Step(
            to=partner,
            send=Run(block, distance),
            source=partner,
            receive=Run(block ^ distance, distance),
        )


def for_any_number(
    all_reduce: Callable[[Number, int], Schedule], rank: Number, n: int, pieces: int = 1
) -> Iterator[Step | Rounds]:
    """An all_reduce for p ranks, p a power of two, made one for n ranks.

    The first n - p pairs of ranks send one rank each: the odd one of a pair hands its tensor to the
    even one, does nothing meanwhile, and gets the result.
    """
    power = 1 << (n.bit_length() - 1)
    extra = n - power
    even = (rank < 2 * extra) & (rank % 2 == 0)
    odd = (rank < 2 * extra) & (rank % 2 == 1)
    everything = Run(0, pieces)
    if extra:
        yield Step(when(odd, rank - 1), when(even, rank + 1), everything, everything, reduce=True)
    number = np.where(rank < 2 * extra, rank // 2, rank - extra)
    yield from among(
        all_reduce(number, power),
        name=lambda number: np.where(number < extra, 2 * number, number + extra),
        members=~odd,
    )
    if extra:
        yield Step(when(even, rank + 1), when(odd, rank - 1), everything, everything)
