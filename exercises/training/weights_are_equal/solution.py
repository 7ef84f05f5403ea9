import torch
import torch.distributed as dist


def all_equal(weights: torch.Tensor) -> bool:
    lowest, highest = weights.clone(), weights.clone()
    dist.all_reduce(lowest, op=dist.ReduceOp.MIN)
    dist.all_reduce(highest, op=dist.ReduceOp.MAX)
    return torch.equal(lowest, highest)
