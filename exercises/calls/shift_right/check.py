"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

from collectives.course.practice.data import moved, runs
from collectives.course.practice.exercise import ExerciseCase, hints


@hints(
    "If every rank calls `send` first, every rank waits for a receive that no rank starts.",
    "So start the send with `isend`, then receive, then wait for the send.",
    "A single rank cannot send to itself, so return a copy.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    for call, length, label in runs(n):
        left = moved((rank - 1) % n, length, call)
        yield ExerciseCase(
            label,
            (moved(rank, length, call),),
            left,
            messages=1,
            least_messages=min(1, n - 1),
            peers=[(rank + 1) % n],
            apart=True,
            says={
                **dict.fromkeys(
                    ("messages", "least_messages"),
                    "every rank sends its tensor to the rank on its right",
                ),
                "peers": "to the rank on its right",
                "apart": "a single rank is its own neighbour, and returns a copy",
            },
        )
