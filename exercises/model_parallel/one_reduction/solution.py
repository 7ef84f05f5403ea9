import torch
import torch.distributed as dist


def step(shard: torch.Tensor, gradients: list[torch.Tensor]) -> None:
    mean = torch.stack(gradients).mean(0) / dist.get_world_size()
    mine = torch.empty_like(shard)
    dist.reduce_scatter_single(mine, mean)
    shard.sub_(mine)
