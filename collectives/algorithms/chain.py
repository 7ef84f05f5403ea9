"""Chain: unlike direct, each rank passes on what it gets, to the next rank; in chunks.

broadcast of chunks a b c, 4 ranks:

    step  0 -> 1  1 -> 2  2 -> 3
    0     a
    1     b       a
    2     c       b       a
    3             c       b
    4                     c

The links of the chain work at the same time: the time of a long tensor no longer grows with the
number of ranks. But the first chunk still needs n - 1 steps to arrive.
"""

from collections.abc import Iterator

from collectives.algorithms.schedule import Number, Schedule, Step, backwards, when


def broadcast(rank: Number, n: int, pieces: int) -> Iterator[Step]:
    for step in range(pieces + n - 2):
        out = step - rank  # the chunk that leaves the rank in this step; the next one comes in
        yield Step(
            to=when((rank < n - 1) & (out >= 0) & (out < pieces), rank + 1),
            send=out,
            source=when((rank > 0) & (out + 1 >= 0) & (out + 1 < pieces), rank - 1),
            receive=out + 1,
        )


def reduce(rank: Number, n: int, pieces: int) -> Schedule:
    """Rank 3's 1000 goes to rank 2, 1100 from there to rank 1, 1110 to rank 0."""
    return backwards(broadcast(rank, n, pieces), reduce=True)
