"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

import torch

from collectives.course.practice.exercise import ExerciseCase, hints


@hints(
    "All ranks must draw with the same seed: take that of rank 0.",
    "Broadcast the seed as a tensor of one number, then `torch.manual_seed`.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    for call, (length, seed) in enumerate(
        ((3, 0), (3, 100), (0, 200), (7, 2**24 + 1), (2, 2**40 + 1), (2, 2**32 - 1))
    ):
        generator = torch.Generator().manual_seed(seed)
        wanted = torch.rand(length, generator=generator, dtype=torch.float64)
        yield ExerciseCase(f"run {call + 1}", (length, seed + 7 * rank * rank), wanted)
