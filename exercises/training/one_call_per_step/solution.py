import torch
import torch.distributed as dist


def sums_of_steps(gradients: list[torch.Tensor], every: int) -> list[torch.Tensor]:
    sums = []
    for first in range(0, len(gradients), every):
        total = torch.stack(gradients[first : first + every]).sum(0)
        dist.all_reduce(total)
        sums.append(total)
    return sums
