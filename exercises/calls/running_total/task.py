"""Running total

Rank r needs the sum of the tensors of ranks 0 to r. Each rank may send at most one message. Return
the sum, and leave `x` as it is.

    rank  x         returned
    0     [1, 2]    [1, 2]
    1     [11, 12]  [12, 14]
    2     [21, 22]  [33, 36]

You may call send, recv, isend, irecv and batch_isend_irecv, and no collective.
"""

import torch
import torch.distributed as dist


def running_total(x: torch.Tensor) -> torch.Tensor:
    raise NotImplementedError("TODO: about eight lines")
