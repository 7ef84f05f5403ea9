"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

import torch

from collectives.course.practice.exercise import ExerciseCase, hints


@hints(
    "Each rank leaves its loop when its own loss is small. What do the others wait for then?",
    "Decide together, by the largest loss of all ranks: it is the same on every rank.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    # Neither the sum nor the mean of the losses falls below the limit in step 4.
    losses = [[1.0, 0.5, 0.3, 0.2, 0.1]] + [[1.0, 0.2, 0.2, 0.2, 0.1]] * (n - 1)
    says = {"least_calls": "each step adds up the gradients of all ranks"}
    yield ExerciseCase(
        "rank 0 needs more steps",
        (losses[rank], 0.25),
        4,
        least_calls=4,
        least_bytes=4 * torch.ones(2).nbytes + 1,  # in each step the gradients, and something else
        says=says | {"least_bytes": says["least_calls"]},
    )
    mine = [2.0, 1.0, 3.0] if rank == n - 1 else [2.0, 0.5, 0.25]
    yield ExerciseCase(f"rank {n - 1} never gets there", (mine, 1.0), 3)
    yield ExerciseCase("a loss is the limit itself", ([0.7, 0.6], 0.7), 2)
    # Each rank has been below the limit once, but not in the same step.
    mine = [0.5, 3.0, 0.5, 0.5] if rank else [3.0, 0.5, 0.75, 0.5]
    yield ExerciseCase("a loss rises again", (mine, 1.0), 3 if n > 1 else 2)
