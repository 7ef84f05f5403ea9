"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

import torch

from collectives.course.practice.data import moved, poison
from collectives.course.practice.exercise import ExerciseCase, hints


@hints(
    "`contiguous()` copies the column, because it has gaps. What becomes of the copy?",
    "Keep the copy: broadcast it, then copy it back into the column.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    for root in range(n):
        column = moved(root, 3, root)
        own = column if rank == root else poison(column)
        matrix = torch.stack([own, torch.full_like(column, rank)], dim=1)
        wanted = torch.stack([column, torch.full_like(column, rank)], dim=1)
        yield ExerciseCase(f"root {root}", (matrix, root), after={0: wanted})
