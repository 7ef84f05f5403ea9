from collections.abc import Iterable

import torch
import torch.distributed as dist


def overlapped(gradients: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    sums, works = [], []
    for gradient in gradients:
        works.append(dist.all_reduce(gradient, async_op=True))
        sums.append(gradient)
    for work in works:
        work.wait()
    return sums
