import torch
import torch.distributed as dist


def all_reduce(x: torch.Tensor) -> None:
    n = dist.get_world_size()
    if len(x) == 0:
        return
    padded = x.new_zeros(-(-len(x) // n) * n)
    padded[: len(x)] = x
    mine = padded.new_empty(len(padded) // n)
    dist.reduce_scatter_single(mine, padded)
    dist.all_gather_single(padded, mine)
    x.copy_(padded[: len(x)])
