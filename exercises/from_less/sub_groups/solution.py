import torch
import torch.distributed as dist


def sum_of_my_row(x: torch.Tensor, width: int) -> torch.Tensor:
    total = x.clone()
    for first in range(0, dist.get_world_size(), width):
        row = list(range(first, first + width))
        group = dist.new_group(row)
        if dist.get_rank() in row:
            dist.all_reduce(total, group=group)
    return total
