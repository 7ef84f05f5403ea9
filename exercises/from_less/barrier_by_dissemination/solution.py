import torch
import torch.distributed as dist


def barrier(marks: torch.Tensor) -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    distance = 1
    while distance < n:
        heard = torch.empty_like(marks)
        work = dist.isend(marks.clone(), (rank + distance) % n)
        dist.recv(heard, (rank - distance) % n)
        work.wait()
        torch.maximum(marks, heard, out=marks)
        distance *= 2
