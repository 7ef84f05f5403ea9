"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

from collectives.course.practice.data import moved, poison, runs
from collectives.course.practice.exercise import ExerciseCase, hints


@hints("Each rank is the root once: then it passes a list, and all others pass None.")
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    for call, length, label in runs(n):
        sent = [moved(rank, n * length, call)[r * length : (r + 1) * length] for r in range(n)]
        wanted = [moved(r, n * length, call)[rank * length : (rank + 1) * length] for r in range(n)]
        received = list(map(poison, wanted))
        yield ExerciseCase(label, (received, sent), after={0: wanted})
