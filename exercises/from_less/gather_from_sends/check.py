"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

from collectives.course.practice.data import at_each_root, moved
from collectives.course.practice.exercise import ExerciseCase, hints


@hints(
    "The root receives once from every other rank, each time from a rank that it names.",
    "A receive without a source takes whatever comes first, and the order of ranks is lost.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    for root, call, length, label in at_each_root(n, "dst"):
        wanted = [moved(r, length, call) for r in range(n)] if rank == root else []
        yield ExerciseCase(label, (moved(rank, length, call), root), wanted)
