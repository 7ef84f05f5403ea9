import time

import torch
import torch.distributed as dist


def collect(x: torch.Tensor, late: float) -> list[torch.Tensor]:
    time.sleep(late)
    if dist.get_rank() > 0:
        dist.send(x, 0)
        return []
    pieces = [x.clone() for _ in range(dist.get_world_size())]
    for rank in range(1, len(pieces)):
        dist.recv(pieces[rank], rank)
    return pieces
