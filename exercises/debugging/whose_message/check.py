"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

from collectives.course.practice.data import moved
from collectives.course.practice.exercise import ExerciseCase, hints


@hints(
    "A receive without a source takes the first message that arrives, from any rank.",
    "Name the source, or use the rank that `recv` returns.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    for call in range(3):
        parts = [moved(r, 2 + call, call) for r in range(n)]
        late = 0.02 * (n - rank)  # the last ranks send first
        yield ExerciseCase(f"run {call + 1}", (parts[rank], late), parts if rank == 0 else [])
