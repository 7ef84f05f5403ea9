"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

from all_reduces import all_reduces

from collectives.course.practice.exercise import ExerciseCase, hints


@hints("After `reduce` one rank has the sum. Which call gives it to all?")
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    yield from all_reduces(rank, n)
