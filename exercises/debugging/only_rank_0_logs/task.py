"""Only rank 0 logs

Rank 0 collects the mean loss of all ranks in each step, and the other ranks return an empty list.
This version hangs. Fix it.

    rank  losses       returned
    0     [0., 8.]     [4.0, 12.0]
    1     [8., 16.]    []

You may call all_reduce, and no other collective.
"""

import torch
import torch.distributed as dist


def train(losses: list[float]) -> list[float]:
    log = []
    for loss in losses:
        if dist.get_rank() == 0:
            mean = torch.tensor(loss, dtype=torch.float64)
            dist.all_reduce(mean)
            log.append((mean / dist.get_world_size()).item())
    return log
