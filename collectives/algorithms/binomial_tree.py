"""Binomial tree: unlike direct, every rank that has the data helps to hand it on.

broadcast, 8 ranks:

    step 0: 0 -> 4
    step 1: 0 -> 2  4 -> 6
    step 2: 0 -> 1  2 -> 3  4 -> 5  6 -> 7

The ranks that have it double in each step: log2(n) steps instead of n - 1. But every step moves the
whole tensor, and half of the ranks only ever receive.
"""

from collections.abc import Iterator

import numpy as np

from collectives.algorithms.schedule import (
    Number,
    Rounds,
    Run,
    Schedule,
    Step,
    backwards,
    doubling,
    when,
)


def broadcast(rank: Number, n: int) -> Iterator[Step]:
    for distance in reversed(doubling(n)):
        gives = (rank % (2 * distance) == 0) & (rank + distance < n)
        takes = rank % (2 * distance) == distance
        yield Step(to=when(gives, rank + distance), source=when(takes, rank - distance))


def scatter(rank: Number, n: int) -> Iterator[Step]:
    """With the pieces of all ranks that the receiver will hand them on to."""
    for distance in reversed(doubling(n)):
        gives = (rank % (2 * distance) == 0) & (rank + distance < n)
        takes = rank % (2 * distance) == distance
        yield Step(
            to=when(gives, rank + distance),
            send=Run(rank + distance, np.minimum(distance, n - rank - distance)),
            source=when(takes, rank - distance),
            receive=Run(rank, np.minimum(distance, n - rank)),
        )


def reduce(rank: Number, n: int) -> Schedule:
    """4 ranks: 10 goes to rank 0 and 1000 to rank 2; then 1100 to rank 0, which has 11."""
    return backwards(broadcast(rank, n), reduce=True)


def gather(rank: Number, n: int) -> Schedule:
    return backwards(scatter(rank, n))


def all_reduce(rank: Number, n: int) -> Iterator[Step | Rounds]:
    yield from reduce(rank, n)
    yield from broadcast(rank, n)
