"""Calls of a broadcast: from each root, with several lengths."""

from collections.abc import Iterator

from collectives.course.practice.data import at_each_root, moved, poison
from collectives.course.practice.exercise import ExerciseCase


def broadcasts(rank: int, n: int, messages: int | None = None) -> Iterator[ExerciseCase]:
    for root, call, length, label in at_each_root(n, "src"):
        x = moved(root, length, call) if rank == root else poison(moved(root, length, call))
        yield ExerciseCase(
            label, (x, root), after={0: moved(root, length, call)}, messages=messages
        )
