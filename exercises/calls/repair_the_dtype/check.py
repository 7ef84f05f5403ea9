"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

from collectives.course.practice.data import moved, poison
from collectives.course.practice.exercise import ExerciseCase, hints


@hints(
    "`x.long()` is a copy, so broadcast fills the copy, and nobody keeps it.",
    "Does `x` need another type at all? All ranks must only have the same one.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    for root in range(n):
        values = moved(root, 3, root).double() * 0.5**root
        x = values.clone() if rank == root else poison(values)
        yield ExerciseCase(f"root {root}", (x, root), after={0: values})
