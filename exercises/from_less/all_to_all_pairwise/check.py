"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

from collectives.course.practice.data import moved, runs
from collectives.course.practice.exercise import ExerciseCase, hints


@hints(
    "In round k send to rank + k and receive from rank - k, both modulo n.",
    "Round 0 is a copy of your own piece.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    for call, length, label in runs(n):
        pieces = [moved(rank, n * length, call)[r * length : (r + 1) * length] for r in range(n)]
        wanted = [moved(r, n * length, call)[rank * length : (rank + 1) * length] for r in range(n)]
        yield ExerciseCase(
            label,
            (pieces,),
            wanted,
            messages=n - 1,
            bytes=(n - 1) * length * 8,
            says=dict.fromkeys(("messages", "bytes"), "all_to_all, pair by pair"),
        )
