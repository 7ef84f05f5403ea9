"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

from all_reduces import all_reduces

from collectives.course.practice.exercise import ExerciseCase, exercise, hints


@exercise(
    "all_reduce",
    stars=2,
    lesson="reduce_scatter",
    uses=("reduce_scatter", "reduce_scatter_single", "all_gather", "all_gather_single"),
)
@hints(
    "First each rank receives the sum of one piece, then all ranks receive all pieces.",
    "If the length is no multiple of n, pad with zeros, and cut them off at the end.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    yield from all_reduces(rank, n)
