import torch
import torch.distributed as dist


def gather(x: torch.Tensor, dst: int) -> list[torch.Tensor]:
    me = dist.get_rank()
    if me != dst:
        dist.send(x, dst)
        return []
    pieces = [x.clone() for _ in range(dist.get_world_size())]
    for rank, piece in enumerate(pieces):
        if rank != me:
            dist.recv(piece, rank)
    return pieces
