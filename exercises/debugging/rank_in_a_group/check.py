"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

import torch
import torch.distributed as dist

from collectives.course.practice.data import added
from collectives.course.practice.exercise import ExerciseCase, hints
from collectives.course.practice.process_group import SENT


@hints(
    "`src` is a rank of the world, even if you pass a group.",
    "So the first member of this group is rank 1.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    for call in range(3):
        parts = [added(r, 2, call) for r in range(n)]
        wanted = torch.stack(parts[1:]).sum(0) if rank else parts[0]
        made = dist.distributed_c10d._world.group_count
        yield ExerciseCase(f"run {call + 1}", (parts[rank],), wanted)
        if dist.distributed_c10d._world.group_count == made:
            SENT.misuse = "this rank has not called new_group: every rank makes every group"
