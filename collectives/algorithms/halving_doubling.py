"""Recursive halving and doubling (Rabenseifner): unlike in recursive doubling, each rank of a pair
sends only the half that the other one keeps.

reduce_scatter, 4 ranks, what each rank still adds up:

    before   1 2 3 4    10 20 30 40    100 200 300 400    1000 2000 3000 4000
    step 0   101 202    1010 2020      303 404            3030 4040      0 <-> 2, 1 <-> 3
    step 1   1111       2222           3333               4444           0 <-> 1, 2 <-> 3

Then the all_gather of recursive doubling. 2 log2(n) steps, as in a tree, and as few bytes as on a
ring: 2 (n - 1)/n of the tensor.
"""

from collections.abc import Iterator

from collectives.algorithms import recursive_doubling
from collectives.algorithms.schedule import Number, Rounds, Run, Step, doubling


def reduce_scatter(rank: Number, n: int) -> Iterator[Step]:
    """For n a power of two."""
    for distance in reversed(doubling(n)):
        kept = rank // distance * distance  # the first piece of the half in which my own piece is
        partner = rank ^ distance
        yield Step(
            to=partner,
            send=Run(kept ^ distance, distance),
            source=partner,
            receive=Run(kept, distance),
            reduce=True,
        )


def all_reduce(rank: Number, n: int) -> Iterator[Step | Rounds]:
    """In as many pieces as the largest power of two up to n."""
    pieces = 1 << (n.bit_length() - 1)
    return recursive_doubling.for_any_number(_all_reduce, rank, n, pieces)


def _all_reduce(rank: Number, n: int) -> Iterator[Step]:
    yield from reduce_scatter(rank, n)
    yield from recursive_doubling.all_gather(rank, n)
