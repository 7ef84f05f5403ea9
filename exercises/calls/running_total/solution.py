import torch
import torch.distributed as dist


def running_total(x: torch.Tensor) -> torch.Tensor:
    rank, n = dist.get_rank(), dist.get_world_size()
    total = x.clone()
    if rank > 0:
        before = torch.empty_like(x)
        dist.recv(before, rank - 1)
        total += before
    if rank < n - 1:
        dist.send(total, rank + 1)
    return total
