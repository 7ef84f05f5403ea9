import torch
import torch.distributed as dist


def step(weights: torch.Tensor, gradient: torch.Tensor, momentum: torch.Tensor) -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    mean = torch.empty_like(momentum)
    dist.reduce_scatter_single(mean, gradient / n)
    momentum.copy_(momentum / 2 + mean)
    mine = weights.chunk(n)[rank] - momentum
    dist.all_gather_single(weights, mine)
