"""Point to point: what the executor needs, and the same over gloo's messages.

>>> def swapped(rank, world_size, device):
...     mine, theirs = torch.tensor([rank]), torch.tensor([-1])
...     GroupLinks(dist.group.WORLD).exchange(1 - rank, mine, 1 - rank, theirs)
...     return theirs.item()
>>> launch(swapped, 2)
[1, 0]
"""

from typing import Protocol

import torch
import torch.distributed as dist


class Links(Protocol):
    """Messages between this rank and the others of its group.

    Tensors are flat, contiguous and never empty. Messages between two ranks arrive in the order in
    which they were sent. A time limit and the news of a dead rank are raised from these methods.
    """

    rank: int
    size: int

    def send(self, peer: int, tensor: torch.Tensor) -> None:
        """Return when the tensor may be written again."""

    def receive(self, peer: int, tensor: torch.Tensor) -> None:
        """Return when the tensor is filled."""

    def exchange(self, to: int, sent: torch.Tensor, source: int, received: torch.Tensor) -> None:
        """Send and receive at once: neither may wait for the other."""


class GroupLinks:
    """Over the messages of a process group, such as gloo's."""

    def __init__(self, group: dist.ProcessGroup):
        self.group = group
        self.rank, self.size = group.rank(), group.size()

    def send(self, peer: int, tensor: torch.Tensor) -> None:
        self._start_send(peer, tensor).wait()

    def receive(self, peer: int, tensor: torch.Tensor) -> None:
        self._start_receive(peer, tensor).wait()

    def exchange(self, to: int, sent: torch.Tensor, source: int, received: torch.Tensor) -> None:
        for work in [self._start_send(to, sent), self._start_receive(source, received)]:
            work.wait()

    def _start_send(self, peer: int, tensor: torch.Tensor) -> dist.Work:
        return self.group.send([as_bytes(tensor)], peer, 0)

    def _start_receive(self, peer: int, tensor: torch.Tensor) -> dist.Work:
        return self.group.recv([as_bytes(tensor)], peer, 0)


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as bytes: a message has no dtype."""
    return tensor.view(torch.uint8)
