"""Reduce_scatter from reduces

Rank r has n pieces, one for each rank. Write the sum of all pieces for rank r into its `output`,
and leave `pieces` as it is.

    rank  pieces                    output afterwards
    0     [[1, 2], [3, 4]]          [11, 22]
    1     [[10, 20], [30, 40]]      [33, 44]

You may call reduce, and no other collective.
"""

import torch
import torch.distributed as dist


def reduce_scatter(output: torch.Tensor, pieces: list[torch.Tensor]) -> None:
    raise NotImplementedError("TODO: about five lines")
