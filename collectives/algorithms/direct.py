"""Direct: the root deals with every other rank itself, one after the other.

broadcast, 4 ranks:  step 0: 0 -> 1   step 1: 0 -> 2   step 2: 0 -> 3

The root is rank 0 here and in all files that follow; `calls` counts the ranks from the root on.
All n - 1 messages pass through the root: n - 1 steps, whatever the size.
"""

from collections.abc import Iterator

from collectives.algorithms.schedule import Number, Schedule, Step, backwards, when


def broadcast(rank: Number, n: int) -> Iterator[Step]:
    for peer in range(1, n):
        yield Step(to=when(rank == 0, peer), source=when(rank == peer, 0))


def scatter(rank: Number, n: int) -> Iterator[Step]:
    """Piece i goes to rank i."""
    for peer in range(1, n):
        yield Step(to=when(rank == 0, peer), send=peer, source=when(rank == peer, 0), receive=peer)


def reduce(rank: Number, n: int) -> Schedule:
    """A broadcast backwards: what flowed from the root flows to it, and is added there.

    Rank 0 of 4 adds 1000, then 100, then 10 to its 1.
    """
    return backwards(broadcast(rank, n), reduce=True)


def gather(rank: Number, n: int) -> Schedule:
    """A scatter backwards."""
    return backwards(scatter(rank, n))
