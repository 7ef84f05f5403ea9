"""What a rank holds and what it sends, measured: the three numbers of every lesson here."""

from collections import Counter

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode


def held(model, optimizer) -> dict[str, int]:
    """The bytes of the parameters, of their gradients, and of the optimizer's state."""
    parameters = list(model.parameters())
    state = [one for held in optimizer.state.values() for one in held.values()]
    gradients = [one.grad for one in parameters if one.grad is not None]
    found = {"parameters": parameters, "gradients": gradients, "optimizer state": state}
    return {kind: sum(one.nbytes for one in tensors) for kind, tensors in found.items()}


def sent(counts, n: int) -> int:
    """The bytes that a rank sends if each call goes around a ring of n ranks.

    The lesson algorithms/ring counts them: an all_reduce is a reduce_scatter and an all_gather.
    """
    rounds = {"all_reduce": 2, "reduce_scatter_single": 1, "all_gather_single": 1}
    return sum(
        rounds[name.partition(".")[2]] * (n - 1) * count.bytes // n
        for name, count in counts.items()
    )


# How often a call goes around a ring: an all_reduce is a reduce_scatter and an all_gather.
ROUNDS = {"c10d::allreduce_": 2, "c10d::_reduce_scatter_base_": 1, "c10d::_allgather_base_": 1}


class Sends(TorchDispatchMode):
    """The calls of this rank, and what it sends if each call goes around a ring of its group.

    `calls` counts them by the ranks of the group, and `bytes` by (these ranks, receiver).

        with Sends() as sends:
            train_one_step()
    """

    def __init__(self):
        super().__init__()
        self.calls: Counter[tuple] = Counter()
        self.bytes: Counter[tuple] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name
        if name in ROUNDS or name == "c10d::send":
            if name in ("c10d::send", "c10d::allreduce_"):
                tensors, group, *others = args
                size = sum(one.nbytes for one in tensors)
            else:
                written, read, group, *others = args
                size = max(written.nbytes, read.nbytes)
            ranks = tuple(dist.get_process_group_ranks(dist.ProcessGroup.unbox(group)))
            n = len(ranks)
            if name == "c10d::send":
                receiver = ranks[others[0]]
            else:
                receiver = ranks[(ranks.index(dist.get_rank()) + 1) % n]
                size = ROUNDS[name] * (n - 1) * size // n
            self.calls[ranks] += 1
            self.bytes[ranks, receiver] += size
        return func(*args, **(kwargs or {}))


class Activations(torch.autograd.graph.saved_tensors_hooks):
    """The bytes that autograd keeps for backward: `now`, and the most so far, `peak`.

    A tensor that two operations keep counts once. Parameters do not count: they are there anyway.
    Neither do whole numbers: they are the data.

        with Activations(model) as activations:
            loss = ...
    """

    def __init__(self, model):
        super().__init__(lambda tensor: _Kept(self, tensor), lambda kept: kept.tensor)
        self.parameters = {one.untyped_storage().data_ptr() for one in model.parameters()}
        self.users: Counter[int] = Counter()  # of each piece of memory
        self.now = self.peak = 0

    def __enter__(self):
        super().__enter__()
        return self

    def count(self, tensor, change: int) -> None:
        """One more operation keeps this tensor, or one less."""
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if address in self.parameters or not tensor.is_floating_point():
            return
        was_kept = self.users[address] > 0
        self.users[address] += change
        self.now += storage.nbytes() * ((self.users[address] > 0) - was_kept)
        self.peak = max(self.peak, self.now)


class _Kept:
    """A tensor, for as long as an operation keeps it."""

    def __init__(self, activations: Activations, tensor):
        self.activations, self.tensor = activations, tensor
        activations.count(tensor, 1)

    def __del__(self):
        self.activations.count(self.tensor, -1)
