"""A rank in a group

All ranks but rank 0 form a group. Its members add up their tensors, and all of them take the sum of
the group's first member; rank 0 returns its own tensor. This version raises an error. Fix it.

    rank  x           returned
    0     [1, 2]      [1, 2]
    1     [10, 20]    [110, 220]
    2     [100, 200]  [110, 220]

You may call all_reduce, broadcast and new_group, and no other collective.
"""

import torch
import torch.distributed as dist


def sum_of_the_others(x: torch.Tensor) -> torch.Tensor:
    others = list(range(1, dist.get_world_size()))
    group = dist.new_group(others)
    total = x.clone()
    if dist.get_rank() in others:
        dist.all_reduce(total, group=group)
        dist.broadcast(total, src=0, group=group)
    return total
