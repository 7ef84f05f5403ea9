"""Accuracy of padded shards

A DistributedSampler gives every rank equally many samples, so some samples go to two ranks.
`numbers` says which samples of the whole data set this rank has, and `right` which of them the
model got right. Return the share of right answers among the `samples` samples, but count each
sample once.

    samples 5
    rank  right                numbers    returned
    0     [True, True, False]  [0, 2, 4]  0.6
    1     [False, True, True]  [1, 3, 0]  0.6

You may call all_reduce, and no other collective.
"""

import torch
import torch.distributed as dist


def accuracy(right: torch.Tensor, numbers: torch.Tensor, samples: int) -> float:
    raise NotImplementedError("TODO: about four lines")
