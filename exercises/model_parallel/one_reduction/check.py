"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

import torch

from collectives.course.practice.data import elements, moved
from collectives.course.practice.exercise import ExerciseCase, hints


@hints(
    "Add up the gradients of this rank's micro-batches first. That needs no call.",
    "`reduce_scatter_single` gives each rank the sum over all ranks for its slice.",
    "A mean divides by the number of ranks and by the number of micro-batches.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    for call, (count, length) in enumerate(((2, 1), (2, 1), (3, 2), (1, 2), (4, 1000))):
        # The second one of the example is twice the first.
        gradients = [
            [2 * (k + 1) * moved(r, n * length, call).double() for k in range(count)]
            for r in range(n)
        ]
        weights = 100 * torch.arange(1.0, n * length + 1, dtype=torch.float64)
        new = weights - torch.stack([one for held in gradients for one in held]).mean(0)
        mine = slice(rank * length, (rank + 1) * length)
        yield ExerciseCase(
            f"{count} micro-batches, {elements(length)} on each rank, run {call + 1}",
            (weights[mine].clone(), gradients[rank]),
            after={0: new[mine]},
            calls=1,
            says={"calls": "one call is enough"},
        )
