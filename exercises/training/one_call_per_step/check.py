"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

import torch

from collectives.course.practice.data import added
from collectives.course.practice.exercise import ExerciseCase, hints


@hints(
    "Add up on this rank first, over the micro-batches of a step; then over the ranks.",
    "`gradients[first : first + every]` is shorter at the end, and never reads too far.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    for number, every in ((3, 2), (4, 2), (1, 4), (0, 2), (7, 3), (5, 2)):
        by_rank = [[(k + 1) * added(r, 1, number % 3) for k in range(number)] for r in range(n)]
        totals = [sum(same) for same in zip(*by_rank, strict=True)]
        wanted = [
            torch.stack(totals[first : first + every]).sum(0) for first in range(0, number, every)
        ]
        yield ExerciseCase(
            f"{number} micro-batches, a step after {every}",
            (by_rank[rank], every),
            wanted,
            calls=len(wanted),
            least_calls=len(wanted),
            says={"calls": "one all_reduce per step", "least_calls": "one all_reduce per step"},
        )
