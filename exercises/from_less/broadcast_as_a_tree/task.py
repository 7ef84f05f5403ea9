"""Broadcast as a binomial tree

Copy `x` of the rank `src` into `x` of every other rank. No rank may send more than log2(n)
messages, rounded up, so each rank that has the tensor passes it on. With eight ranks and root 0,
rank 0 sends to 1; then 0 and 1 send to 2 and 3; then these four send to 4, 5, 6 and 7. The root
must send in each of these rounds, or in all but one if n is no power of two.

    src 0
    rank  x         x afterwards
    0     [1, 2]    [1, 2]
    1     [-7, -7]  [1, 2]
    2     [-7, -7]  [1, 2]

You may call send, recv, isend, irecv and batch_isend_irecv, and no collective.
"""

import torch
import torch.distributed as dist


def broadcast(x: torch.Tensor, src: int) -> None:
    raise NotImplementedError("TODO: about nine lines")
