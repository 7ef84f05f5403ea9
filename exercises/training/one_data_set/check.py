"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

import torch

from collectives.course.practice.exercise import ExerciseCase, hints


@hints(
    "All ranks must draw with the same seed: take that of rank 0.",
    "Broadcast the seed as a tensor of one number, then `torch.manual_seed`.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    for call, length in enumerate((3, 3, 0, 7)):
        generator = torch.Generator().manual_seed(100 * call)
        wanted = torch.rand(length, generator=generator, dtype=torch.float64)
        yield ExerciseCase(f"run {call + 1}", (length, 100 * call + rank), wanted)
