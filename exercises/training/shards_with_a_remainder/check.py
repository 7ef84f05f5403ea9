"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

import torch

from collectives.course.practice.exercise import ExerciseCase, hints


@hints(
    "With 10 samples and 4 ranks the shards have 3, 3, 2 and 2 samples.",
    "`divmod(samples, n)` gives the length of a short shard, and how many are one longer.",
    "The ranks before yours hold `rank * short + min(rank, longer)` samples.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    for samples in (10, n, n - 1, 0, 1000):
        wanted = torch.arange(samples).tensor_split(n)[rank].tolist()
        yield ExerciseCase(f"{samples} sample{'s' * (samples != 1)}", (samples, rank, n), wanted)
    yield ExerciseCase("rank 3 of 4, on all ranks", (10, 3, 4), [8, 9])
