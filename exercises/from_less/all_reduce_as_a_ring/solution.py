import torch
import torch.distributed as dist


def all_reduce(x: torch.Tensor) -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    pieces = x.tensor_split(n)
    for step in range(2 * (n - 1)):
        mine, theirs = pieces[(rank - step) % n], pieces[(rank - step - 1) % n]
        received = torch.empty_like(theirs)
        work = dist.isend(mine, (rank + 1) % n)
        dist.recv(received, (rank - 1) % n)
        work.wait()
        theirs.copy_(theirs + received if step < n - 1 else received)
