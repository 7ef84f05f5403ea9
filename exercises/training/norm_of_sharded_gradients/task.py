"""The norm of sharded gradients

Each rank holds a part of the gradients of one model. To clip them, every rank needs the norm of all
of them, which is the root of the sum of all squares. Return it as a float; one call is enough.

    rank  gradients  returned
    0     [[3.0]]    5.0
    1     [[4.0]]    5.0

You may call all_reduce, and no other collective.
"""

import torch
import torch.distributed as dist


def norm(gradients: list[torch.Tensor]) -> float:
    raise NotImplementedError("TODO: three lines")
