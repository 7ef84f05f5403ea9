"""Repair the dtype

Every rank should get the values of the root, in place. This version returns without an error, but
only the root has the right values. Fix it.

    root 0
    rank  x                x afterwards
    0     [1., 2., 3.]     [1., 2., 3.]
    1     [-7., -7., -7.]  [1., 2., 3.]

You may call broadcast, and no other collective.
"""

import torch
import torch.distributed as dist


def fill_from_root(x: torch.Tensor, root: int) -> None:
    dist.broadcast(x.long(), src=root)
