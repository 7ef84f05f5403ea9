"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

import torch

from collectives.course.practice.exercise import ExerciseCase, hints


@hints(
    "Scatter one number to each rank, square it there, and gather the squares.",
    "Only the root passes lists; the others pass None.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    for root in range(n):
        numbers = (torch.arange(1.0, n + 1) + root) * (-0.5) ** root
        is_root = rank == root
        wanted = numbers.square() if is_root else torch.tensor([])
        yield ExerciseCase(
            f"root {root}",
            (numbers if is_root else None, root),
            wanted,
            least_calls=2 if n > 1 else 0,
            bytes=4 * (n + 1) if is_root else 4,
            says=dict.fromkeys(("least_calls", "bytes"), "each rank squares its number"),
        )
