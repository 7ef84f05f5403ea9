"""Ring: unlike the chain, the last rank is followed by the first, and every rank starts at once.

The tensor is cut in n pieces. reduce_scatter, 4 ranks, what each rank sends to the next one:

    step  rank 0        rank 1        rank 2        rank 3
    0     4  (piece 3)  10 (piece 0)  200 (piece 1) 3000 (piece 2)
    1     3003 (2)      44 (3)        110 (0)       2200 (1)
    2     2202 (1)      3033 (2)      444 (3)       1110 (0)

After the last step rank r holds the sum of piece r. An all_gather around the same ring then hands
the sums to everyone. Every rank sends 2 (n - 1) pieces of 1/n of the tensor: no algorithm can send
less. But it takes 2 (n - 1) steps, so small tensors wait long on a large ring.
"""

from collections.abc import Iterator

from collectives.algorithms.schedule import Number, Rounds, Step


def reduce_scatter(rank: Number, n: int) -> Iterator[Rounds]:
    # subtle: rank r starts with piece r - 1, so that it ends with piece r. If it starts with
    # piece r, as in many drawings, it ends with piece r + 1, and the all_gather must know that.
    right, left = (rank + 1) % n, (rank - 1) % n
    yield Rounds(
        n - 1,
        lambda k: Step(
            to=right,
            send=(rank - 1 - k) % n,
            source=left,
            receive=(rank - 2 - k) % n,
            reduce=True,
        ),
    )


def all_gather(rank: Number, n: int) -> Iterator[Rounds]:
    right, left = (rank + 1) % n, (rank - 1) % n
    yield Rounds(
        n - 1,
        lambda k: Step(to=right, send=(rank - k) % n, source=left, receive=(rank - 1 - k) % n),
    )


def all_reduce(rank: Number, n: int) -> Iterator[Rounds]:
    yield from reduce_scatter(rank, n)
    yield from all_gather(rank, n)
