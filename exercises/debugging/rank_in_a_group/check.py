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
        yield ExerciseCase(
            f"run {call + 1}", (parts[rank],), wanted, peers=range(1, n) if rank else ()
        )
        store, key = dist.distributed_c10d._get_default_store(), f"members only, run {call + 1}"
        if rank == 1:
            store.set(key, str(all(SENT.groups)))
        if not SENT.groups and store.get(key) != b"True":
            SENT.misuse = "this rank has not called new_group: every rank makes every group"
