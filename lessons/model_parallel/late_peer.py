"""A peer that is late on purpose: what the others do meanwhile, they do without its message."""

from datetime import timedelta

import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode


class LatePeer(TorchDispatchMode):
    """Rank 0 makes its first send after every other rank has multiplied matrices.

    If one of them waits for the message before it computes, rank 0 gives up after a while, sends
    it, and `meanwhile` is False. It sees the sends of gloo, not those of a backend in Python.

        with LatePeer() as late:
            compute_and_send()
    """

    PATIENCE = timedelta(seconds=10)

    def __init__(self):
        super().__init__()
        self.rank, self.meanwhile, self.is_late = dist.get_rank(), True, True
        store = dist.distributed_c10d._get_default_store()  # private: the store of this job
        turn = store.add(f"late peer of rank {self.rank}", 1)  # the same number on every rank
        self.store = dist.PrefixStore(f"late peer {turn}", store)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name
        if name == "c10d::send" and self.rank == 0 and self.is_late:
            self.is_late = False
            others = [f"{rank}" for rank in range(1, dist.get_world_size())]
            try:
                self.store.wait(others, self.PATIENCE)
            except RuntimeError:  # they wait, too
                self.meanwhile = False
        result = func(*args, **(kwargs or {}))
        if name in ("aten::mm", "aten::bmm"):
            self.store.set(f"{self.rank}", "computes")
        return result
