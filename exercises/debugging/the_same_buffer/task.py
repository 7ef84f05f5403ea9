"""The same buffer

Rank 0 sends all its tensors to rank 1, one after another, without waiting for each. Rank 1 returns
what it received, rank 0 its own tensors, and the other ranks an empty list. Each tensor has 1000
elements, of which the table shows two. This version is wrong, but only sometimes. Fix it.

    rank  tensors           returned
    0     [[1, 2], [3, 4]]  [[1, 2], [3, 4]]
    1     2 (how many)      [[1, 2], [3, 4]]

You may call send, recv, isend, irecv and batch_isend_irecv, and no collective.
"""

import torch
import torch.distributed as dist


def send_all(tensors: list[torch.Tensor] | int) -> list[torch.Tensor]:
    if dist.get_rank() == 0:
        buffer, works = torch.empty_like(tensors[0]), []
        for tensor in tensors:
            buffer.copy_(tensor)
            works.append(dist.isend(buffer, 1))
        for work in works:
            work.wait()
        return [tensor.clone() for tensor in tensors]
    if dist.get_rank() > 1:
        return []
    received = [torch.empty(1000, dtype=torch.int64) for _ in range(tensors)]
    for tensor in received:
        dist.recv(tensor, 0)
    return received
