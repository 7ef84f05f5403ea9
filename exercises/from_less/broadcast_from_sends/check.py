"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

from broadcasts import broadcasts

from collectives.course.practice.exercise import ExerciseCase, hints


@hints(
    "The root sends to every other rank; every other rank receives once.",
    "The root must not send to itself, because gloo refuses that.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    yield from broadcasts(rank, n)
