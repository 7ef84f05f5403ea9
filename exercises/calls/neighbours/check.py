"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

from collectives.course.practice.exercise import ExerciseCase, hints


@hints(
    "After the last rank comes rank 0. Which operator of Python turns n into 0?",
    "`(rank + 1) % n` is the rank to the right, and `%` also works on the left of rank 0.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    yield ExerciseCase("one run", (rank, n), ((rank - 1) % n, (rank + 1) % n))
    yield ExerciseCase("rank 3 of 4, on all ranks", (3, 4), (2, 0))
