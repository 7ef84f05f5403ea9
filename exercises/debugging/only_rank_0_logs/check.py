"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

from collectives.course.practice.exercise import ExerciseCase, hints


@hints(
    "Which ranks call all_reduce in the line that prints the mean?",
    "All ranks have to make the call, but only rank 0 uses the result.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    for call, steps in enumerate((2, 3, 0)):
        losses = [
            [(8.0 * (r + k) + call * 2.0**-30) * (-1) ** call for k in range(steps)]
            for r in range(n)
        ]
        means = [sum(losses[r][k] for r in range(n)) / n for k in range(steps)]
        yield ExerciseCase(f"{steps} steps", (losses[rank],), means if rank == 0 else [])
