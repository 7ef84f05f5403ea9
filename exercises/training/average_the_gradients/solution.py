import torch
import torch.distributed as dist


def average_gradients(gradients: list[torch.Tensor]) -> None:
    for gradient in gradients:
        dist.all_reduce(gradient)
        gradient /= dist.get_world_size()
