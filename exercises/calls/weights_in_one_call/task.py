"""Weights in one call

The trainer's weights are several tensors of different shapes. Copy them to all ranks, in place, but
with a single broadcast, because each call costs time, however short its tensor is.

    trainer 0
    rank  weights           weights afterwards
    0     [[1, 2], [3]]     [[1, 2], [3]]
    1     [[-7, -7], [-7]]  [[1, 2], [3]]

You may call broadcast, and no other collective.
"""

import torch
import torch.distributed as dist


def update(weights: list[torch.Tensor], trainer: int) -> None:
    raise NotImplementedError("TODO: about four lines")
