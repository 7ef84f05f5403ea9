"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

import torch

from collectives.course.practice.data import added
from collectives.course.practice.exercise import ExerciseCase, hints


@hints(
    "Three calls: along the row, along the column, along the row again.",
    "After a reduce_scatter in the row each rank holds a piece of the row's sum.",
    "All_reduce that piece in the column, then all_gather the pieces in the row.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    for call, width in enumerate((2, 2, n, 1)):
        # The numbers of the second run are too large for float32, also on four ranks.
        parts = [added(r, 2 * width, call) * (10_001 if call == 1 else 1) for r in range(n)]
        total = torch.stack(parts).sum(0)
        yield ExerciseCase(
            f"rows of {width} ranks, run {call + 1}",
            (parts[rank], width),
            after={0: total},
            calls=3,
            reduced=16,
            peers={r for r in range(n) if r // width == rank // width or (r - rank) % width == 0},
            says={
                "calls": "three calls are enough",
                "reduced": "only a piece of `x` may travel there, in an all_reduce",
                "peers": "none of them is one of all ranks",
            },
        )
