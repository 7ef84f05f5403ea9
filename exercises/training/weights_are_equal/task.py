"""Are the weights equal?

Return True on every rank if the weights of all ranks are equal, and False on every rank if they are
not.

    rank  weights   returned
    0     [1., 2.]  False
    1     [1., 3.]  False

You may call all_reduce, and no other collective.
"""

import torch
import torch.distributed as dist


def all_equal(weights: torch.Tensor) -> bool:
    raise NotImplementedError("TODO: four lines")
