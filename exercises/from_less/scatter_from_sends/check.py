"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

from collectives.course.practice.data import at_each_root, moved, poison
from collectives.course.practice.exercise import ExerciseCase, hints


@hints(
    "The root sends piece r to rank r, and copies its own piece.",
    "All other ranks have no pieces, so they only receive.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    for root, call, length, label in at_each_root(n, "src"):
        mine = moved(rank, length, call)
        pieces = [moved(r, length, call) for r in range(n)] if rank == root else None
        yield ExerciseCase(label, (poison(mine), pieces, root), after={0: mine})
