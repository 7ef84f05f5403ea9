"""Accuracy over unequal shards

Each rank has predictions and labels for its own shard of the validation data, and a shard may be
empty. Return which share of all predictions is right, as a float, on every rank.

    rank  predictions  labels    returned
    0     [1]          [1]       0.6667
    1     [11, 13]     [11, 12]  0.6667

You may call all_reduce, and no other collective.
"""

import torch
import torch.distributed as dist


def accuracy(predictions: torch.Tensor, labels: torch.Tensor) -> float:
    raise NotImplementedError("TODO: about four lines")
