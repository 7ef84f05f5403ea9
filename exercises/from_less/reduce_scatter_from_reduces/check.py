"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

import torch

from collectives.course.practice.data import added, poison, runs
from collectives.course.practice.exercise import ExerciseCase, hints


@hints(
    "Each rank is the root once, and receives the sum of the pieces for it.",
    "`reduce` may write into its tensor on every rank, not only on the root: pass a copy.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    for call, length, label in runs(n):
        by_rank = [list(added(r, n * length, call).view(n, length)) for r in range(n)]
        total = torch.stack([pieces[rank] for pieces in by_rank]).sum(0)
        yield ExerciseCase(label, (poison(total), by_rank[rank]), after={0: total})
