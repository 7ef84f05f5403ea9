"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

from collectives.course.practice.data import moved, poison, runs
from collectives.course.practice.exercise import ExerciseCase, hints


@hints(
    "Each rank is the root once.",
    "Copy your own tensor into its place first, then broadcast each place from its rank.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    for call, length, label in runs(n):
        pieces = [poison(moved(rank, length, call)) for _ in range(n)]
        yield ExerciseCase(
            label,
            (pieces, moved(rank, length, call)),
            after={0: [moved(r, length, call) for r in range(n)]},
        )
