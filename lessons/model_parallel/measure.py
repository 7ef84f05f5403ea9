"""What a rank holds and what it sends, measured: the three numbers of every lesson here."""

from collections import Counter
from weakref import WeakValueDictionary

from collectives import Mismatch
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only


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
    total = 0
    for name, count in counts.items():
        if (call := name.partition(".")[2]) not in rounds:
            raise Mismatch(f"it also calls {call}, whose way around a ring is not known here")
        total += rounds[call] * (n - 1) * count.bytes // n
    return total


# How often a call goes around a ring. Other calls that send are not known, and fail.
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
        if func.namespace == "c10d" and name not in {*ROUNDS, "c10d::send", "c10d::recv_"}:
            raise Mismatch(f"it also calls {name}, of which `Sends` does not know what it sends")
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


class Live(TorchDispatchMode):
    """The bytes of tensors that are made inside and still live, whoever holds them.

    `now` counts them, and `peak` is the most that lived when a backward pass began, also the one of
    a layer that is computed again. The gradients of a model that is given do not count, because
    `held` counts them. Neither do whole numbers: they are the data.

        live = Live(model)
        with live:
            loss.backward()
    """

    def __init__(self, model=None):
        super().__init__()
        self.parameters = list(model.parameters()) if model else []
        self.peak, self.records = 0, True
        self.storages = WeakValueDictionary()  # by id: it forgets those that are freed

    @property
    def now(self) -> int:
        gradients = {id(storage) for storage in _storages(one.grad for one in self.parameters)}
        alive = list(self.storages.items())
        return sum(storage.nbytes() for key, storage in alive if key not in gradients)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        recorded, self.records = self.records, torch.is_grad_enabled()
        if recorded and not self.records:  # autograd records the forward pass only
            self.peak = max(self.peak, self.now)
        if func.namespace == "c10d":  # it makes no tensor
            return _on_copies(func, args, kwargs or {})
        result = func(*args, **(kwargs or {}))
        given = {id(storage) for storage in _storages(tree_leaves((args, kwargs)))}
        made = {id(storage): storage for storage in _storages(tree_leaves(result))}
        self.storages.update({key: made[key] for key in made.keys() - given})  # not the views
        return result


def _on_copies(func, args, kwargs):
    """A call of c10d on copies of its tensors, which is over when this returns.

    A thread of gloo holds the tensors of a call a moment longer than the program does.
    """
    tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
    copies = {id(one): one.clone() for one in tensors}
    args, kwargs = tree_map_only(torch.Tensor, lambda one: copies[id(one)], (args, kwargs))
    result = func(*args, **kwargs)
    work = result[-1] if isinstance(result, tuple) else result
    work.wait()
    for one in tensors:
        one.copy_(copies[id(one)])
    return result


def _storages(values) -> list:
    """The pieces of memory of all tensors with floating-point numbers."""
    tensors = (one for one in values if isinstance(one, torch.Tensor) and one.is_floating_point())
    return [one.untyped_storage() for one in tensors]


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
