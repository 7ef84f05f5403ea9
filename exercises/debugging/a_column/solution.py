import torch
import torch.distributed as dist


def fill_column(matrix: torch.Tensor, root: int) -> None:
    column = matrix[:, 0].contiguous()
    dist.broadcast(column, src=root)
    matrix[:, 0] = column
