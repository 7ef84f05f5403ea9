"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

import torch

from collectives.course.practice.data import added
from collectives.course.practice.exercise import ExerciseCase, hints


@hints(
    "Every rank makes every group, in the same order, even groups that it is not in.",
    "Row i of a grid with `width` columns has the ranks i * width to (i + 1) * width - 1.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    for call, width in enumerate((2, n, 1, 2)):
        parts = [added(r, 2 + call, call) for r in range(n)]
        row = rank // width
        total = torch.stack(parts[row * width : (row + 1) * width]).sum(0)
        yield ExerciseCase(
            f"rows of {width} ranks, run {call + 1}",
            (parts[rank], width),
            total,
            peers=range(row * width, (row + 1) * width),
            says={"peers": "the sum over the ranks of your own row"},
        )
