"""Exchange in pairs

Two ranks exchange their tensors: each calls `exchange` with the other's rank, and returns what it
received. This version hangs. Fix it.

    rank  x         peer  returned
    0     [1, 2]    1     [11, 12]
    1     [11, 12]  0     [1, 2]

You may call send, recv, isend, irecv and batch_isend_irecv, and no collective.
"""

import torch
import torch.distributed as dist


def exchange(x: torch.Tensor, peer: int) -> torch.Tensor:
    received = torch.empty_like(x)
    dist.send(x, peer)
    dist.recv(received, peer)
    return received
