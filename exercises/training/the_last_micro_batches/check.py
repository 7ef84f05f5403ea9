"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

from collectives.course.practice.exercise import ExerciseCase, hints


@hints(
    "`(i + 1) % every == 0` is right for all micro-batches but the last ones.",
    "After the last micro-batch there is always a step.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    for number, every in ((7, 3), (6, 3), (1, 4), (5, 1), (0, 2)):
        wanted = [i for i in range(number) if (i + 1) % every == 0 or i == number - 1]
        yield ExerciseCase(f"{number} micro-batches, a step after {every}", (number, every), wanted)
