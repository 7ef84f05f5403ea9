"""Bruck: dissemination with data. Unlike a barrier's, the messages carry pieces.

all_gather, 5 ranks, the pieces that rank 0 holds:

    before   0
    step 0   0 1          from rank 1
    step 1   0 1 2 3      from rank 2
    step 2   0 1 2 3 4    from rank 4, which has more, but only this one is missing

Unlike recursive doubling it needs no power of two.
"""

from collections.abc import Iterator

from collectives.algorithms.schedule import Number, Run, Step, doubling


def all_gather(rank: Number, n: int) -> Iterator[Step]:
    for distance in doubling(n):
        count = min(distance, n - distance)
        # The pieces keep their places, and a run of them goes on from the last to the first.
        # (In Bruck's paper each rank's own piece is the first, and all are rotated in the end.)
        yield Step(
            to=(rank - distance) % n,
            send=Run(rank, count),
            source=(rank + distance) % n,
            receive=Run((rank + distance) % n, count),
        )


def all_to_all(rank: Number, n: int) -> Iterator[Step]:
    """Pieces pass through other ranks: more bytes than pairwise exchange, but log2(n) messages.

    Pieces 0 to n - 1 are what the rank gives, pieces n to 2n - 1 what it gets. Meanwhile place j of
    the latter holds a piece that has to travel j ranks: in step k if bit k of j is set.
    """
    places = range(n)
    wanted = [(rank + j) % n for j in places]
    yield Step(to=rank, send=wanted, source=rank, receive=[n + j for j in places])
    for distance in doubling(n):
        travelling = [n + j for j in places if j & distance]
        yield Step((rank + distance) % n, (rank - distance) % n, travelling, travelling)
    # subtle: what is at place j now came from j ranks before. It must go where that rank belongs.
    came_from = [n + (rank - j) % n for j in places]
    yield Step(to=rank, send=[n + j for j in places], source=rank, receive=came_from)
