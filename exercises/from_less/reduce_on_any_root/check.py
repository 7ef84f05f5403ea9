"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

import torch

from collectives.course.practice.data import added, at_each_root
from collectives.course.practice.exercise import ExerciseCase, hints


@hints(
    "The root receives from every other rank, and adds what it receives.",
    "Add into a new tensor, because `x` must stay as it was.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    for root, call, length, label in at_each_root(n, "dst"):
        parts = [added(r, length, call) for r in range(n)]
        wanted = torch.stack(parts).sum(0) if rank == root else parts[rank]
        yield ExerciseCase(label, (parts[rank], root), wanted)
