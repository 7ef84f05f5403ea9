import torch
import torch.distributed as dist


def draw(length: int, seed: int) -> torch.Tensor:
    shared = torch.tensor([seed])
    dist.broadcast(shared, src=0)
    generator = torch.Generator().manual_seed(shared.item())
    return torch.rand(length, generator=generator, dtype=torch.float64)
