"""A peer that is late on purpose: it proves that the others go on while a message is on its way.

Results alone cannot tell a program that overlaps from one that waits at once.

>>> def step(rank, world_size, device):
...     late = LatePeer()
...     if rank == 0:
...         late.wait()
...     work = dist.all_reduce(torch.ones(1), async_op=True)
...     late.go_on()  # with `async_op=False` nobody comes here in time
...     work.wait()
...     return late.meanwhile
>>> launch(step, 2)
[True, True]
"""

from datetime import timedelta

PATIENCE = timedelta(seconds=10)


class LatePeer:
    """Rank 0 joins only when every other rank has got far enough without it.

    All ranks make one, in the same order. Rank 0 calls `wait` before it joins a call, the others
    call `go_on` where they should have come by then. `meanwhile` is False on rank 0 if it has
    given up: the others wait for it.
    """

    def __init__(self) -> None:
        import torch.distributed as dist

        dist.barrier()  # the first call on NCCL connects all ranks, so no rank may be late for it
        store = dist.distributed_c10d._get_default_store()  # private: the store of this job
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.meanwhile = True
        turn = store.add(f"late peer of rank {self.rank}", 1)  # the same number on every rank
        self._store = dist.PrefixStore(f"late peer {turn}", store)

    def go_on(self) -> None:
        """This rank has got far enough without rank 0."""
        self._store.set(f"{self.rank}", "goes on")

    def wait(self) -> None:
        """Return when every other rank has got far enough; give up after 10 seconds."""
        others = [f"{rank}" for rank in range(self.world_size) if rank != self.rank]
        try:
            self._store.wait(others, PATIENCE)
        except RuntimeError:
            self.meanwhile = False
