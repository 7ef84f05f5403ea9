"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

from collectives.course.practice.exercise import Case, exercise, hints


@exercise("train", stars=2, lesson="mistakes/order", uses=("all_reduce",))
@hints(
    "Each rank ends its loop when its own loss is small. What do the others wait for then?",
    "Decide together: the largest loss of all ranks is the same number on every rank.",
)
def cases(rank: int, n: int) -> Iterator[Case]:
    # Neither the sum nor the mean of the losses falls below the limit in step 4.
    losses = [[1.0, 0.5, 0.3, 0.2, 0.1]] + [[1.0, 0.2, 0.2, 0.2, 0.1]] * (n - 1)
    yield Case("rank 0 needs more steps", (losses[rank], 0.25), 4)
