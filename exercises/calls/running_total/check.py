"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

import torch

from collectives.course.practice.data import moved, runs
from collectives.course.practice.exercise import ExerciseCase, hints


@hints(
    "Rank 0 only sends, the last rank only receives, and all others do both.",
    "Receive first, add your own tensor, then send the sum to the next rank.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    for call, length, label in runs(n):
        parts = [moved(r, length, call) for r in range(n)]
        total = torch.stack(parts[: rank + 1]).sum(0)
        yield ExerciseCase(
            label,
            (parts[rank],),
            total,
            messages=1,
            least_messages=int(rank < n - 1),
            says={
                "messages": "each rank may send at most one message",
                "least_messages": "rank r needs the sum of the tensors of ranks 0 to r",
            },
        )
