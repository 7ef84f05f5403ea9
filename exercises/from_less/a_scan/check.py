"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

import torch

from collectives.course.practice.data import added, runs
from collectives.course.practice.exercise import ExerciseCase, hints


@hints(
    "Rank r needs the sum of the ranks below it, so rank 0 needs zeros.",
    "Send what you received plus your own tensor, but return what you received.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    for call, length, label in runs(n):
        parts = [added(r, length, call) for r in range(n)]
        below = torch.stack([torch.zeros_like(parts[0]), *parts[:rank]]).sum(0)
        yield ExerciseCase(
            label,
            (parts[rank],),
            below,
            messages=1,
            least_messages=int(rank < n - 1),
            says={
                "messages": "each rank may send at most one message",
                "least_messages": "rank r returns the sum of the tensors of the ranks below it",
            },
        )
    ones, large = torch.ones(2).double(), torch.tensor([torch.inf, 1e17]).double()
    x = ones if rank < n - 1 else large
    yield ExerciseCase("the last rank has inf and 1e17", (x,), rank * ones)
