import torch
import torch.distributed as dist


def reduce(x: torch.Tensor, dst: int) -> torch.Tensor:
    me = dist.get_rank()
    if me != dst:
        dist.send(x, dst)
        return x.clone()
    total, received = x.clone(), torch.empty_like(x)
    for rank in range(dist.get_world_size()):
        if rank != me:
            dist.recv(received, rank)
            total += received
    return total
