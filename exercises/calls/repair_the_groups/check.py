"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

from collectives.course.practice.data import added
from collectives.course.practice.exercise import ExerciseCase, hints


@hints(
    "How often does rank 0 call new_group, and how often rank 1?",
    "Every rank makes every group, in the same order, even groups that it is not in.",
    "Only the two members call all_reduce.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    for call in range(3):
        parts = [added(r, 2, call) for r in range(n)]
        wanted = [parts[left] + parts[left + 1] for left in range(n - 1) if rank - left in (0, 1)]
        yield ExerciseCase(
            f"run {call + 1}",
            (parts[rank],),
            wanted,
            peers=[rank - 1, rank + 1],
            says={"peers": "each pair of neighbours is a group, which adds up its two tensors"},
        )
