"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

import torch

from collectives.course.practice.data import elements, moved
from collectives.course.practice.exercise import ExerciseCase, hints


@hints(
    "The mean of the ranks' means is wrong, because the ranks hold different amounts.",
    "You need two sums over the ranks: of the values, and of how many there are.",
    "If you put both into one tensor of two elements, one call is enough.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    for call, lengths in enumerate(
        (range(1, n + 1), [2 * (r % 2) for r in range(n)], range(n, 0, -1))
    ):
        if sum(lengths):
            parts = [moved(r, length, call).double() for r, length in enumerate(lengths)]
            yield ExerciseCase(
                f"rank 0 has {elements(lengths[0])}", (parts[rank],), torch.cat(parts).mean()
            )
