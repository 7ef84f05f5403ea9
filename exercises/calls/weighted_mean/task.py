"""A weighted mean

Each rank holds some values, but not all ranks hold equally many, and a rank may hold none. Return
the mean of all values, on every rank.

    rank  values    returned
    0     [1]       8.0
    1     [11, 12]  8.0

You may call all_reduce, and no other collective.
"""

import torch
import torch.distributed as dist


def weighted_mean(values: torch.Tensor) -> torch.Tensor:
    raise NotImplementedError("TODO: about three lines")
