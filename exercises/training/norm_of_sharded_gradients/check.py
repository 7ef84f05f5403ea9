"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

import torch
from gradients import gradients

from collectives.course.practice.exercise import ExerciseCase, hints


@hints(
    "The norm is the root of the sum of all squares, but roots do not add up.",
    "Add up the squares on every rank, then over the ranks, and take the root last.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    example = [[torch.tensor([3.0 + r])] for r in range(n)]
    runs = [example, *([gradients(r, call) for r in range(n)] for call in range(3))]
    for run, by_rank in enumerate(runs, 1):
        whole = torch.cat([gradient for held in by_rank for gradient in held])
        yield ExerciseCase(
            f"run {run}",
            (by_rank[rank],),
            whole.norm().item(),
            calls=1,
            says={"calls": "one call is enough"},
        )
