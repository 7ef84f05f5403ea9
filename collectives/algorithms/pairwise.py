"""Pairwise exchange: unlike on the ring, every rank talks to every other rank, to a new one in each
step.

all_to_all, 4 ranks: in step 1 rank r sends to r + 1, in step 2 to r + 2, in step 3 to r + 3.

Pieces 0 to n - 1 are what the rank gives, pieces n to 2n - 1 what it gets. Each piece travels once:
no algorithm can send less, but it takes n - 1 messages from every rank.
"""

from collections.abc import Iterator

from collectives.algorithms.schedule import Number, Step


def all_to_all(rank: Number, n: int) -> Iterator[Step]:
    for shift in range(n):  # with shift 0 a rank copies its own piece
        to, source = (rank + shift) % n, (rank - shift) % n
        # subtle: if all ranks sent to rank 0 first, then to rank 1, they would queue up there.
        yield Step(to=to, send=to, source=source, receive=n + source)
