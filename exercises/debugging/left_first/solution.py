import torch
import torch.distributed as dist


def neighbours_values(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    rank, n = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % n, (rank + 1) % n
    if n == 1:
        return x.clone(), x.clone()
    from_left, from_right = torch.empty_like(x), torch.empty_like(x)
    works = [dist.isend(x, left), dist.isend(x, right)]
    dist.recv(from_left, left)
    dist.recv(from_right, right)
    for work in works:
        work.wait()
    return from_left, from_right
