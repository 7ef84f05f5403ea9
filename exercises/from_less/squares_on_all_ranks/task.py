"""Squares on all ranks

The rank `root` has a number for each rank, and the others have None. Each rank squares its number,
and the root returns the tensor of all squares; the others return an empty tensor.

    root 0
    rank  numbers   returned
    0     [1., 2.]  [1., 4.]
    1     None      []

You may call scatter and gather, and no other collective.
"""

import torch
import torch.distributed as dist


def on_all_ranks(numbers: torch.Tensor | None, root: int) -> torch.Tensor:
    raise NotImplementedError("TODO: about five lines")
