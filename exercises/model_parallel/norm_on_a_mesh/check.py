"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

import torch

from collectives.course.practice.data import moved
from collectives.course.practice.exercise import ExerciseCase, hints


@hints(
    "Squares add up over all ranks, and the root comes last.",
    "The square of each number in `shared` is added once for each rank of a tensor group.",
    "Divide the squares of `shared` by `tensor` before you add up.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    example = [torch.tensor([2.0 + 2 * r]) for r in range(n)], [torch.tensor([4.0])] * n, n
    runs = [example]
    for call, tensor in enumerate(size for size in range(1, n + 1) if n % size == 0):
        cut = [moved(r, 3, call % 3 + 1).double() for r in range(n)]
        runs.append((cut, [moved(r // tensor, 2, call % 2 + 2).double() for r in range(n)], tensor))
    for cut, shared, tensor in runs:
        right = torch.cat(cut + shared[::tensor]).norm().item()
        counted = torch.cat(cut + shared).norm().item()

        def explain(got: float, counted: float = counted) -> str | None:
            again = "it counts `shared` once for each rank of a tensor group"
            return again if abs(got - counted) < 1e-9 * counted else None

        label = f"tensor groups of {tensor}"
        yield ExerciseCase(
            label,
            (cut[rank], shared[rank], tensor),
            right,
            explain=explain,
            calls=1,
            says={"calls": "one call is enough"},
        )
