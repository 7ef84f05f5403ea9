"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

import torch

from collectives.course.practice.data import moved
from collectives.course.practice.exercise import ExerciseCase, hints


@hints(
    "`a` is one rank's tensor on all ranks; which rank's?",
    "`b` on rank 0 has the first element of every rank, so each rank has one for each rank.",
    "`c` on rank 0 is the sum of `b` on rank 0, and one call makes it from `x`.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    for call in range(3):
        rows = torch.stack([moved(r, n, call) for r in range(n)])
        wanted = (rows[-1], rows[:, rank], rows[:, rank].sum(0, keepdim=True))
        yield ExerciseCase(
            f"run {call + 1}",
            (rows[rank].clone(),),
            wanted,
            calls=3,
            least_calls=3 if n > 1 else 0,
            least_bytes=2 * rows[rank].nbytes + 1 if n > 1 else 0,  # each of the three has some
            reduced=0,
            says={
                "reduced": "none of the calls is all_reduce",
                **dict.fromkeys(
                    ("calls", "least_calls", "least_bytes"),
                    "three calls of torch.distributed give `a`, `b` and `c`",
                ),
            },
        )
