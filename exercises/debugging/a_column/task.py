"""A column

Copy the first column of the root's matrix into the first column of every other rank's matrix; the
second column stays as it is. This version changes nothing. Fix it.

    root 0
    rank  matrix                matrix afterwards
    0     [[1, -7], [2, -7]]    [[1, -7], [2, -7]]
    1     [[-7, -7], [-7, -7]]  [[1, -7], [2, -7]]

You may call broadcast, and no other collective.
"""

import torch
import torch.distributed as dist


def fill_column(matrix: torch.Tensor, root: int) -> None:
    dist.broadcast(matrix[:, 0].contiguous(), src=root)
