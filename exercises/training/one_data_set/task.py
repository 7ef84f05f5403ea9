"""One data set

Every rank draws the data set by itself, and a sampler then deals out its numbers. But each rank has
another seed, so the ranks hold shards of different data sets. Return on all ranks what rank 0 would
draw. Fix it.

    rank  length  seed  returned
    0     3       0     what torch.rand(3) gives with the seed 0, in float64
    1     3       1     the same

You may call broadcast, and no other collective.
"""

import torch
import torch.distributed as dist


def draw(length: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(length, generator=generator, dtype=torch.float64)
