"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

import torch

from collectives.course.practice.data import elements, moved
from collectives.course.practice.exercise import ExerciseCase, hints


@hints(
    "In one process, `gradient @ weight.mT` is the gradient of `x`, and `x.mT @ gradient` that "
    "of `weight`.",
    "All ranks use `x`, each with its columns, so its gradient is a sum over all ranks.",
    "A rank's weight makes only its own columns, so its gradient needs no call.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    for call, (rows, width, columns) in enumerate(((1, 2, 1), (1, 2, 1), (3, 2, 4), (2, 1, 1))):
        x = moved(0, rows * width, call).double().view(rows, width)
        # Of all ranks, side by side.
        weight = moved(0, width * n * columns).double().view(width, -1)
        gradient = moved(1, rows * n * columns, call).double().view(rows, -1)
        gradient /= 3 if call == 3 else 1
        of_x, of_weight = gradient @ weight.mT, x.mT @ gradient
        mine = slice(rank * columns, (rank + 1) * columns)
        alone = gradient[:, mine] @ weight[:, mine].mT

        def explain(got: tuple, alone: torch.Tensor = alone) -> str | None:
            is_alone = n > 1 and torch.equal(got[1], alone)
            return "the gradient of `x` comes from this rank's columns alone" if is_alone else None

        yield ExerciseCase(
            f"{elements(rows * width)} of x, run {call + 1}",
            (x, weight[:, mine].clone(), gradient[:, mine].clone()),
            ((x @ weight)[:, mine], of_x, of_weight[:, mine]),
            parts=("result", "gradient of x", "gradient of weight"),
            explain=explain,
        )
