"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

import torch

from collectives.course.practice.data import elements
from collectives.course.practice.exercise import ExerciseCase, hints


@hints(
    "The median at a position needs the values of all ranks at that position, and no others.",
    "Gather one part of `size` elements after the other: `x.split(size)`.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    for size, length in ((2, 3), (2, 5), (1, 3), (10, 4), (1, 0)):
        rows = torch.stack([(torch.arange(length) * 7 + 3 * r) % 11 for r in range(n)])
        if size == 1:
            rows = 0.5 - rows.double()
        wanted = rows.median(dim=0).values if rank == 0 else rows[0, :0]
        yield ExerciseCase(
            f"{elements(length)}, {size} at a time",
            (rows[rank], size),
            wanted,
            held=n * size * 8,
            says={"held": "rank 0 only has room for `size` numbers of each rank at a time"},
        )
