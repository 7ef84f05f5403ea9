"""Repair the groups

The ranks form a row, and each pair of neighbours is a group, which adds up its two tensors. Return
the sums of this rank's pairs, the left pair first. This version works with two ranks, but with
three it hangs or fails. Fix it.

    rank  x           returned
    0     [1, 2]      [[11, 22]]
    1     [10, 20]    [[11, 22], [110, 220]]
    2     [100, 200]  [[110, 220]]

You may call all_reduce and new_group, and no other collective.
"""

import torch
import torch.distributed as dist


def sums_of_pairs(x: torch.Tensor) -> list[torch.Tensor]:
    rank, sums = dist.get_rank(), []
    for left in (rank - 1, rank):
        if left >= 0 and left + 1 < dist.get_world_size():
            pair = dist.new_group([left, left + 1])
            total = x.clone()
            dist.all_reduce(total, group=pair)
            sums.append(total)
    return sums
