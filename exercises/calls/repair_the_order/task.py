"""Repair the order

Every rank needs the learning rate of rank 0, and the number of samples of all ranks together.
Return both. This version hangs. Fix it.

    rank  rate  samples  returned
    0     0.5   10       (0.5, 30)
    1     0.0   20       (0.5, 30)

You may call all_reduce and broadcast, and no other collective.
"""

import torch
import torch.distributed as dist


def agree(rate: float, samples: int) -> tuple[float, int]:
    shared, total = torch.tensor(rate), torch.tensor(samples)
    if dist.get_rank() == 0:
        dist.broadcast(shared, src=0)
        dist.all_reduce(total)
    else:
        dist.all_reduce(total)
        dist.broadcast(shared, src=0)
    return shared.item(), total.item()
