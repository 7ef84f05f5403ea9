"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

import torch

from collectives.course.practice.data import elements, moved
from collectives.course.practice.exercise import ExerciseCase, hints


@hints(
    "Count the right predictions and all predictions, add up both over the ranks, then divide.",
    "A rank without any prediction makes the call, too, because the others wait for it.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    for call, lengths in enumerate((range(1, n + 1), range(n), range(2 * n, 0, -2))):
        if sum(lengths):
            labels = [moved(r, length) for r, length in enumerate(lengths)]
            given = [label + (label % (2 + call) == 0) for label in labels]
            right = torch.cat(labels) == torch.cat(given)
            yield ExerciseCase(
                f"rank 0 has {elements(lengths[0])}",
                (given[rank], labels[rank]),
                right.double().mean().item(),
            )
