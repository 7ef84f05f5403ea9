"""All_reduce from reduce_scatter and all_gather

Write the sum of all ranks' tensors into `x` on every rank. No rank may hold the tensors of more
than two ranks for it. The length of `x` need not be a multiple of n, and may be 0.

    rank  x             x afterwards
    0     [1, 2, 3]     [11, 22, 33]
    1     [10, 20, 30]  [11, 22, 33]

You may call reduce_scatter, reduce_scatter_single, all_gather and all_gather_single, and no
other collective.
"""

import torch
import torch.distributed as dist


def all_reduce(x: torch.Tensor) -> None:
    raise NotImplementedError("TODO: about eight lines")
