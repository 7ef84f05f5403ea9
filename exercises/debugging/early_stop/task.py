"""Early stop

A program trains until the loss is below the limit on all ranks, and each step adds up the gradients
of all ranks. Return the number of steps, which is the same on all ranks. This version hangs. Fix
it.

    limit 0.25
    rank  losses                     returned
    0     [1.0, 0.5, 0.3, 0.2, 0.1]  4
    1     [1.0, 0.2, 0.2, 0.2, 0.1]  4

You may call all_reduce, and no other collective.
"""

import torch
import torch.distributed as dist


def train(losses: list[float], limit: float) -> int:
    steps = 0
    for loss in losses:
        steps += 1
        dist.all_reduce(torch.ones(2))  # the gradients
        if loss < limit:
            break
    return steps
