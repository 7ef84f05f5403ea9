"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

from collectives.course.practice.data import moved
from collectives.course.practice.exercise import ExerciseCase, hints


@hints(
    "A rank that has everything must keep the old weights, too, if another one lacks a tensor.",
    "Let each rank give 1 if all of its tensors have come, and 0 otherwise.",
    "The minimum over the ranks is 1 only if all have everything.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    missing = {
        "rank 0 has nothing": {0: [False, False]},
        "all have everything": {},
        f"rank {n - 1} has nothing": {n - 1: [False, False]},
        "rank 0 lacks the last tensor": {0: [True, False]},
        "all lack another tensor": {r: [r % 2 > 0, r % 2 == 0] for r in range(n)},
        "all have everything again": {},
    }
    for call, (label, lacks) in enumerate(missing.items()):
        old = [moved(0, 2, 1), moved(0, 3, 1)]
        new = [moved(1, 2, 1 + call), moved(1, 3, 1 + call)]
        new = [one.to(two.dtype) for one, two in zip(new, old, strict=True)]
        came = lacks.get(rank, [True, True])
        after = [one.clone() for one in (old if lacks else new)]
        yield ExerciseCase(label, (old, new, came), not lacks, after={0: after})
