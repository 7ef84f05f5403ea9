"""Broadcast from all_reduce

Copy `x` of the rank `src` into `x` of every other rank, with one call of all_reduce.

    src 0
    rank  x         x afterwards
    0     [1, 2]    [1, 2]
    1     [-7, -7]  [1, 2]

You may call all_reduce, and no other collective.
"""

import torch
import torch.distributed as dist


def broadcast(x: torch.Tensor, src: int) -> None:
    raise NotImplementedError("TODO: three lines")
