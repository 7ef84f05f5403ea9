"""All_reduce as a ring

Write the sum of all ranks' tensors into `x` on every rank. Each rank sends 2 (n - 1) messages, all
to its right neighbour, and no message is longer than the longest of the n pieces of `x`.

    rank  x         x afterwards
    0     [1, 2]    [11, 22]
    1     [10, 20]  [11, 22]

You may call send, recv, isend, irecv and batch_isend_irecv, and no collective.
"""

import torch
import torch.distributed as dist


def all_reduce(x: torch.Tensor) -> None:
    raise NotImplementedError("TODO: about ten lines")
