"""Shards with a remainder

Cut the samples 0, 1, 2, ... into n shards, in order, and return the list of those of `rank`. Each
sample is in exactly one shard; the lengths differ by at most one, and longer shards come first.

    samples 10, n 4
    rank  returned
    0     [0, 1, 2]
    1     [3, 4, 5]
    2     [6, 7]
    3     [8, 9]
"""

import torch
import torch.distributed as dist


def my_shard(samples: int, rank: int, n: int) -> list[int]:
    raise NotImplementedError("TODO: about three lines")
