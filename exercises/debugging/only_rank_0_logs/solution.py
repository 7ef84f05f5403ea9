import torch
import torch.distributed as dist


def train(losses: list[float]) -> list[float]:
    log = []
    for loss in losses:
        mean = torch.tensor(loss, dtype=torch.float64)
        dist.all_reduce(mean)
        if dist.get_rank() == 0:
            log.append((mean / dist.get_world_size()).item())
    return log
