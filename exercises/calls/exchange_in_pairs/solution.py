import torch
import torch.distributed as dist


def exchange(x: torch.Tensor, peer: int) -> torch.Tensor:
    received = torch.empty_like(x)
    work = dist.isend(x, peer)
    dist.recv(received, peer)
    work.wait()
    return received
