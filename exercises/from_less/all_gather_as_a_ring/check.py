"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

import torch

from collectives.course.practice.data import moved, runs
from collectives.course.practice.exercise import ExerciseCase, hints


@hints(
    "In each of n - 1 rounds a rank sends to its right neighbour what it received last.",
    "In round k rank r sends the piece of rank (r - k) % n, and receives that of (r - k - 1) % n.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    for call, length, label in runs(n):
        yield ExerciseCase(
            label,
            (moved(rank, length, call),),
            torch.cat([moved(r, length, call) for r in range(n)]),
            messages=n - 1,
            least_messages=n - 1,
            bytes=(n - 1) * length * 8,
            peers=[(rank + 1) % n],
            says={
                **dict.fromkeys(("messages", "least_messages"), "each rank sends n - 1 messages"),
                "peers": "all to its right neighbour",
                "bytes": "each message is only as long as one rank's tensor",
            },
        )
