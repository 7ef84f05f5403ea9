"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

import torch

from collectives.course.practice.exercise import ExerciseCase, hints


@hints(
    "A sampler that pads gives some samples to two ranks: counting right answers counts them "
    "twice.",
    "Make a tensor with a place for each sample of the whole data set, and put your answers there.",
    "With MAX as the reduction, a sample that two ranks hold still counts once.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    for samples in (2 * n + 1, 7, 1):
        right = torch.arange(samples) % 3 != 1
        each = -(-samples // n)
        numbers = (torch.arange(each) * n + rank) % samples  # dealt like cards, and padded
        wanted = right.sum().item() / samples
        yield ExerciseCase(f"{samples} samples", (right[numbers], numbers, samples), wanted)
