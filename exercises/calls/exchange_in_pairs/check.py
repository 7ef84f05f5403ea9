"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

from collectives.course.practice.data import moved
from collectives.course.practice.exercise import ExerciseCase, hints


@hints(
    "If both ranks call `send` first, each waits until the other one receives.",
    "So let the smaller rank send first, and the other receive first; or use `isend`.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    for call, distance in enumerate((1, n // 2, n // 2, 1, n - 1)):
        peer = rank ^ distance
        yield ExerciseCase(
            f"rank 0 with rank {distance}, run {call + 1}",
            (moved(rank, 2 + call, call), peer),
            moved(peer, 2 + call, call),
            messages=1,
            least_messages=1,
            peers=[peer],
            says=dict.fromkeys(
                ("messages", "least_messages", "peers"), "two ranks exchange their tensors"
            ),
        )
