import torch
import torch.distributed as dist


def sum_of_the_others(x: torch.Tensor) -> torch.Tensor:
    others = list(range(1, dist.get_world_size()))
    group = dist.new_group(others)
    total = x.clone()
    if dist.get_rank() in others:
        dist.all_reduce(total, group=group)
        dist.broadcast(total, src=1, group=group)
    return total
