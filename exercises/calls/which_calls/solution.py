import torch
import torch.distributed as dist


def results(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    a, b, c = x.clone(), torch.empty_like(x), x.new_empty(1)
    dist.broadcast(a, src=dist.get_world_size() - 1)
    dist.all_to_all_single(b, x)
    dist.reduce_scatter_single(c, x)
    return a, b, c
