import torch
import torch.distributed as dist


def train(losses: list[float], limit: float) -> int:
    steps = 0
    for loss in losses:
        steps += 1
        dist.all_reduce(torch.ones(2))  # the gradients
        largest = torch.tensor(loss)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        if largest < limit:
            break
    return steps
