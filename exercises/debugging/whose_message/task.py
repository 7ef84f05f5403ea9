"""Whose message

Rank 0 returns the tensors of all ranks in rank order, and the others an empty list. The ranks are
ready at different times, and `late` is in seconds. This version mixes up the order. Fix it.

    rank  x         returned
    0     [1, 2]    [[1, 2], [11, 12], [21, 22]]
    1     [11, 12]  []
    2     [21, 22]  []

You may call send, recv, isend, irecv and batch_isend_irecv, and no collective.
"""

import time

import torch
import torch.distributed as dist


def collect(x: torch.Tensor, late: float) -> list[torch.Tensor]:
    time.sleep(late)
    if dist.get_rank() > 0:
        dist.send(x, 0)
        return []
    pieces = [x.clone() for _ in range(dist.get_world_size())]
    for rank in range(1, len(pieces)):
        dist.recv(pieces[rank])
    return pieces
