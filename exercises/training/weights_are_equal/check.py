"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

import torch

from collectives.course.practice.exercise import ExerciseCase, hints


@hints(
    "If the smallest of all values equals the largest, all are equal.",
    "Reduce one copy with MIN and another with MAX.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    for different in (None, n - 1, 0):
        weights = torch.arange(4.0) + (rank == different)
        yield ExerciseCase(
            "equal weights" if different is None else f"rank {different} differs",
            (weights,),
            different is None or n == 1,
        )
    weights = torch.arange(4.0) - 10
    yield ExerciseCase("equal negative weights", (weights,), True)
    # The middle rank has the mean of all, and each rank's weights have one sum.
    weights = weights + torch.tensor([1.0, -1.0, 0.0, 0.0]) * (rank - (n - 1) / 2)
    yield ExerciseCase("all differ", (weights,), n == 1)
    for place in (0, 3):
        weights = torch.arange(4.0)
        weights[place] += rank == n - 1
        yield ExerciseCase(f"rank {n - 1} differs at place {place}", (weights,), n == 1)
    # Sums in which each place has a weight of its own, such as 1, 2, 3, 4, are equal.
    weights = torch.arange(4.0) + torch.tensor([1.0, -2.0, 1.0, 0.0]) * (rank == n - 1)
    yield ExerciseCase("sums by place are equal", (weights,), n == 1)
    yield ExerciseCase("another order", (torch.arange(4.0).roll(rank),), n == 1)
    yield ExerciseCase("equal fractions", (torch.arange(1.0, 50.0) / 49,), True)
    yield ExerciseCase("no weights", (torch.empty(0),), True)
    yield ExerciseCase(
        "a small difference", (torch.tensor([1.0]).double() + 1e-12 * (rank == 0),), n == 1
    )
