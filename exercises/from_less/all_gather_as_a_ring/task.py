"""All_gather as a ring

Every rank returns all tensors in one, in rank order. Each rank sends n - 1 messages, all to its
right neighbour, and each message is only as long as one rank's tensor.

    rank  x         returned
    0     [1, 2]    [1, 2, 11, 12]
    1     [11, 12]  [1, 2, 11, 12]

You may call send, recv, isend, irecv and batch_isend_irecv, and no collective.
"""

import torch
import torch.distributed as dist


def ring_all_gather(x: torch.Tensor) -> torch.Tensor:
    raise NotImplementedError("TODO: about ten lines")
