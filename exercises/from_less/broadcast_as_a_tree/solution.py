import torch
import torch.distributed as dist


def broadcast(x: torch.Tensor, src: int) -> None:
    n = dist.get_world_size()
    place = (dist.get_rank() - src) % n  # the root has place 0
    distance = 1
    while distance < n:
        if place < distance and place + distance < n:
            dist.send(x, (place + distance + src) % n)
        elif distance <= place < 2 * distance:
            dist.recv(x, (place - distance + src) % n)
        distance *= 2
