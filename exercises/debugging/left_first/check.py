"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

from collectives.course.practice.data import moved
from collectives.course.practice.exercise import ExerciseCase, hints


@hints(
    "With two ranks it works, with three it hangs: for whom does each rank wait first?",
    "Every rank begins with its left neighbour, but that one begins with its own left neighbour.",
    "So start both sends with `isend`, then receive.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    for call in range(3):
        wanted = (moved((rank - 1) % n, 2, call), moved((rank + 1) % n, 2, call))
        yield ExerciseCase(f"run {call + 1}", (moved(rank, 2, call),), wanted)
