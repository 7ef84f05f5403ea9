import torch
import torch.distributed as dist


def norm(gradients: list[torch.Tensor]) -> float:
    squares = sum(gradient.square().sum() for gradient in gradients)
    dist.all_reduce(squares)
    return squares.sqrt().item()
