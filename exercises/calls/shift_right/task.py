"""Shift right

Every rank sends its tensor to the rank on its right, and returns what it received from the rank on
its left. The ranks form a ring: to the right of the last rank is rank 0, and a single rank is its
own neighbour, and returns a copy. `x` stays as it is.

    rank  x         returned
    0     [1, 2]    [21, 22]
    1     [11, 12]  [1, 2]
    2     [21, 22]  [11, 12]

You may call send, recv, isend, irecv and batch_isend_irecv, and no collective.
"""

import torch
import torch.distributed as dist


def shift(x: torch.Tensor) -> torch.Tensor:
    raise NotImplementedError("TODO: about seven lines")
