"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

import torch

from collectives.course.practice.data import added
from collectives.course.practice.exercise import ExerciseCase, hints


@hints(
    "In which order does each rank go through its dictionary?",
    "The k-th call of one rank meets the k-th call of the others, so sort the names.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    for call in range(3):
        parts = [
            {name: (k + 1) * added(r, 2, call) for k, name in enumerate(("loss", "lr", "words"))}
            for r in range(n)
        ]
        names = sorted(parts[0], reverse=rank % 2 == 1)
        given = [(name, parts[rank][name]) for name in names]
        total = [(name, torch.stack([part[name] for part in parts]).sum(0)) for name in names]
        yield ExerciseCase(f"run {call + 1}", (given,), total)
