"""All_reduce from reduce and broadcast

Write the sum of all ranks' tensors into `x` on every rank.

    rank  x         x afterwards
    0     [1, 2]    [11, 22]
    1     [10, 20]  [11, 22]

You may call reduce and broadcast, and no other collective.
"""

import torch
import torch.distributed as dist


def all_reduce(x: torch.Tensor) -> None:
    raise NotImplementedError("TODO: two lines")
