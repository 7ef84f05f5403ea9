"""All_gather from broadcasts

Fill the list `pieces` with the tensors of all ranks, in rank order, in place.

    rank  pieces                x         pieces afterwards
    0     [[-7, -7], [-7, -7]]  [1, 2]    [[1, 2], [11, 12]]
    1     [[-7, -7], [-7, -7]]  [11, 12]  [[1, 2], [11, 12]]

You may call broadcast, and no other collective.
"""

import torch
import torch.distributed as dist


def all_gather(pieces: list[torch.Tensor], x: torch.Tensor) -> None:
    raise NotImplementedError("TODO: three lines")
