import torch
import torch.distributed as dist


def exclusive_scan(x: torch.Tensor) -> torch.Tensor:
    rank, n = dist.get_rank(), dist.get_world_size()
    below = torch.zeros_like(x)
    if rank > 0:
        dist.recv(below, rank - 1)
    if rank < n - 1:
        dist.send(below + x, rank + 1)
    return below
