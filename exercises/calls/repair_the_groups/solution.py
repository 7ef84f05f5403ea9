import torch
import torch.distributed as dist


def sums_of_pairs(x: torch.Tensor) -> list[torch.Tensor]:
    sums = []
    for left in range(dist.get_world_size() - 1):
        pair = dist.new_group([left, left + 1])  # every rank makes every group
        if dist.get_rank() in (left, left + 1):
            total = x.clone()
            dist.all_reduce(total, group=pair)
            sums.append(total)
    return sums
