"""Which calls

Three calls of torch.distributed give `a`, `b` and `c`. Find them, and return the three tensors. `x`
has n elements, one for each rank, and stays as it is. None of the calls is all_reduce.

    rank  x             a             b            c
    0     [1, 2, 3]     [21, 22, 23]  [1, 11, 21]  [33]
    1     [11, 12, 13]  [21, 22, 23]  [2, 12, 22]  [36]
    2     [21, 22, 23]  [21, 22, 23]  [3, 13, 23]  [39]
"""

import torch
import torch.distributed as dist


def results(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    raise NotImplementedError("TODO: about five lines, three of them calls")
