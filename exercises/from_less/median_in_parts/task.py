"""A median in parts

A median cannot be reduced, because it needs the values of all ranks at one position. Rank 0 returns
the median over all ranks at each position of `x`, and the others an empty tensor. Of an even number
of values, take the lower one in the middle, as `torch.median` does. But rank 0 only has room for
`size` numbers of each rank at a time.

    size 2
    rank  x           returned
    0     [0, 7, 3]   [0, 7, 3]
    1     [3, 10, 6] []

You may call gather, and no other collective.
"""

import torch
import torch.distributed as dist


def median_of_all(x: torch.Tensor, size: int) -> torch.Tensor:
    raise NotImplementedError("TODO: about ten lines")
