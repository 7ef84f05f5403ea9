import torch
import torch.distributed as dist


def slowest(milliseconds: int) -> tuple[int, int]:
    n, rank = dist.get_world_size(), dist.get_rank()
    x = torch.tensor([milliseconds * n + rank])  # the time decides, and the rank goes with it
    dist.reduce(x, dst=0, op=dist.ReduceOp.MAX)
    return divmod(x.item(), n) if rank == 0 else (0, 0)
