"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

import torch

from collectives.course.practice.data import elements, moved
from collectives.course.practice.exercise import ExerciseCase, hints


@hints(
    "Two calls: a reduce_scatter before the update, and an all_gather after it.",
    "`reduce_scatter_single` gives each rank the sum for its slice, but you need the mean.",
    "`weights.chunk(n)[rank]` is the slice of this rank. Gather all slices into `weights`.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    for call, length in enumerate((1, 2, 2, 0, 1000)):
        # Multiples of n: the mean is a whole number.
        gradients = [n * moved(r, n * length, call).double() for r in range(n)]
        weights = 1000 * torch.arange(1.0, n * length + 1, dtype=torch.float64)
        momentum = 2 * moved(1, n * length, call).double()
        new = momentum / 2 + torch.stack(gradients).sum(0) / n
        mine = slice(rank * length, (rank + 1) * length)
        yield ExerciseCase(
            f"{elements(length)} on each rank, run {call + 1}",
            (weights.clone(), gradients[rank], momentum[mine].clone()),
            after={0: weights - new, 2: new[mine]},
            calls=2,
            says={"calls": "with two calls"},
        )
