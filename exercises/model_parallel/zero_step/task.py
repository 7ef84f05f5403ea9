"""ZeRO's step

Every rank has all weights, and the gradient of all weights from its own part of the batch. But of
the momentum, rank r has only slice r of n equal slices. Each rank updates its slice with the mean
of the gradients of all ranks, in this order:

    momentum = momentum / 2 + mean
    weights = weights - momentum

Then all ranks get all new weights. Change `weights` and `momentum` in place, with two calls.

    rank  weights       gradient    momentum  weights afterwards  momentum afterwards
    0     [1000, 2000]  [2, 4]      [22]      [977, 1974]         [23]
    1     [1000, 2000]  [22, 24]    [24]      [977, 1974]         [26]

You may call reduce_scatter_single and all_gather_single, and no other collective.
"""

import torch
import torch.distributed as dist


def step(weights: torch.Tensor, gradient: torch.Tensor, momentum: torch.Tensor) -> None:
    raise NotImplementedError("TODO: about six lines")
