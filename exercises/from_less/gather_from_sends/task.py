"""Gather from sends

The rank `dst` returns the list of all tensors, in rank order, and the others an empty list.

    dst 0
    rank  x         returned
    0     [1, 2]    [[1, 2], [11, 12]]
    1     [11, 12]  []

You may call send, recv, isend, irecv and batch_isend_irecv, and no collective.
"""

import torch
import torch.distributed as dist


def gather(x: torch.Tensor, dst: int) -> list[torch.Tensor]:
    raise NotImplementedError("TODO: about nine lines")
