import torch
import torch.distributed as dist


def agree(rate: float, samples: int) -> tuple[float, int]:
    shared, total = torch.tensor(rate), torch.tensor(samples)
    dist.broadcast(shared, src=0)
    dist.all_reduce(total)
    return shared.item(), total.item()
