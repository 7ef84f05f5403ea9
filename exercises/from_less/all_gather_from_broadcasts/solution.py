import torch
import torch.distributed as dist


def all_gather(pieces: list[torch.Tensor], x: torch.Tensor) -> None:
    pieces[dist.get_rank()].copy_(x)
    for root, piece in enumerate(pieces):
        dist.broadcast(piece, src=root)
