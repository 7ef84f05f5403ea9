"""Reduce on any root

The rank `dst` returns the sum of all tensors, and every other rank its own. `x` stays as it is.

    dst 0
    rank  x         returned
    0     [1, 2]    [11, 22]
    1     [10, 20]  [10, 20]

You may call send, recv, isend, irecv and batch_isend_irecv, and no collective.
"""

import torch
import torch.distributed as dist


def reduce(x: torch.Tensor, dst: int) -> torch.Tensor:
    raise NotImplementedError("TODO: about ten lines")
