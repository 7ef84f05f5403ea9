"""A send that is late on purpose: what the others compute meanwhile, they compute without it."""

import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from collectives.semantics.late_peer import LatePeer


class LateSend(TorchDispatchMode):
    """Rank 0 makes its first send after every other rank has multiplied matrices.

    If one of them waits for the message before it computes, `meanwhile` is False. It sees the sends
    of gloo, not those of a backend in Python.

        with LateSend() as late:
            compute_and_send()
    """

    def __init__(self):
        super().__init__()
        self.peer, self.is_late = LatePeer(), dist.get_rank() == 0

    @property
    def meanwhile(self) -> bool:
        return self.peer.meanwhile

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name
        if name == "c10d::send" and self.is_late:
            self.is_late = False
            self.peer.wait()
        result = func(*args, **(kwargs or {}))
        if name in ("aten::mm", "aten::bmm"):
            self.peer.go_on()
        return result
