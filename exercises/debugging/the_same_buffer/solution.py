import torch
import torch.distributed as dist


def send_all(tensors: list[torch.Tensor] | int) -> list[torch.Tensor]:
    if dist.get_rank() == 0:
        works = [dist.isend(tensor, 1) for tensor in tensors]
        for work in works:
            work.wait()
        return [tensor.clone() for tensor in tensors]
    if dist.get_rank() > 1:
        return []
    received = [torch.empty(1000, dtype=torch.int64) for _ in range(tensors)]
    for tensor in received:
        dist.recv(tensor, 0)
    return received
