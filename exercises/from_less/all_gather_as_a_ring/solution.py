import torch
import torch.distributed as dist


def ring_all_gather(x: torch.Tensor) -> torch.Tensor:
    rank, n = dist.get_rank(), dist.get_world_size()
    rows = x.new_empty(n, len(x))
    rows[rank] = x
    for step in range(n - 1):
        work = dist.isend(rows[(rank - step) % n], (rank + 1) % n)
        dist.recv(rows[(rank - step - 1) % n], (rank - 1) % n)
        work.wait()
    return rows.flatten()
