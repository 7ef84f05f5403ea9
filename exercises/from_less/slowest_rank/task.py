"""The slowest rank

Each rank passes how long it took, in whole milliseconds. Rank 0 returns the longest time and the
rank that took it, and the others return (0, 0). Make one call of reduce, with one number.

    rank  milliseconds  returned
    0     10            (30, 1)
    1     30            (0, 0)
    2     12            (0, 0)

You may call reduce, and no other collective.
"""

import torch
import torch.distributed as dist


def slowest(milliseconds: int) -> tuple[int, int]:
    raise NotImplementedError("TODO: about four lines")
