"""Dissemination: unlike in pairwise exchange, the distance doubles from step to step.

barrier, 5 ranks:

    step 0: r -> r + 1    rank r knows that r - 1 has come
    step 1: r -> r + 2    and r - 2, r - 3
    step 2: r -> r + 4    and r - 4

Word of every rank has spread to all after log2(n) steps, rounded up, for any n.
"""

from collections.abc import Iterator

from collectives.algorithms.schedule import Number, Step, doubling


def barrier(rank: Number, n: int) -> Iterator[Step]:
    for distance in doubling(n):
        yield Step(to=(rank + distance) % n, source=(rank - distance) % n)
