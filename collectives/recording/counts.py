"""Count calls, messages and bytes from below: what reaches a process group, whoever asked for it.

    with counting() as counts:
        train_one_step()
    counts["c10d.all_reduce"]  # Count(calls=2, bytes=19280)

`c10d.all_reduce`, ...: each call that reaches a process group, also those that DDP makes from C++
    and those that a call of objects consists of. Seen by torch's dispatcher; on by_hand and mpi by
    the process group.
`_c10d_functional.all_reduce`, ...: each functional collective, as DTensor makes them. The call of
    the process group in which it ends is not counted again. Seen by torch's dispatcher.
`_dtensor.all_to_all_single`: the one call that DTensor makes from C++, and only on GPUs.
`by_hand.message`: each message that by_hand puts on a connection, and its bytes without the label.
    Seen by the connection. Ranks that share memory send no messages.

The bytes of a call are those of the tensors that it reads or of those that it writes, whichever are
more: of all_gather the gathered array, of reduce_scatter the one that is reduced, as nccl-tests
counts. They are not what travels: that depends on the algorithm, and by_hand's messages show it.

The dispatcher is asked for calls of the thread that counts, and of autograd for it. Each operator
of torch takes some microseconds longer meanwhile.
"""

import contextlib
import threading
from collections.abc import Iterator
from typing import NamedTuple

import torch

# Operators and methods whose names are not those of torch.distributed, without a final "_".
NAMES = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "allgather": "all_gather",
    "allgather_coalesced": "all_gather",
    "_allgather_base": "all_gather_single",
    "allgather_into_tensor_coalesced": "all_gather_single",
    "all_gather_into_tensor": "all_gather_single",
    "all_gather_into_tensor_coalesced": "all_gather_single",
    "_reduce_scatter_base": "reduce_scatter_single",
    "reduce_scatter_tensor": "reduce_scatter_single",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_single",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all_single",
    "shard_dim_alltoall": "all_to_all_single",
    "recv_any_source": "recv",
    "recv_anysource": "recv",
}

# Operators of these namespaces that communicate nothing: they wait for a call, or follow it.
SILENT = ("wait_tensor", "_wrap_tensor_autograd", "check_for_nan")


def name_of(method: str) -> str:
    """The name in torch.distributed of an operator, or of a process group's method."""
    return NAMES.get(method, method.removesuffix("_coalesced"))


class Count(NamedTuple):
    calls: int = 0
    bytes: int = 0


class Counts(dict[str, Count]):
    """By name, as in "c10d.all_reduce": calls and bytes of this rank. A name not seen counts 0."""

    def __missing__(self, name: str) -> Count:
        return Count()

    def total(self, namespace: str = "") -> Count:
        """All calls and bytes, or those of a namespace such as "c10d"."""
        found = [count for name, count in self.items() if name.startswith(namespace)]
        return Count(sum(count.calls for count in found), sum(count.bytes for count in found))


_open: list[Counts] = []
_lock = threading.Lock()  # by_hand sends in threads of its own


class _Functional(threading.local):
    """Whether this thread is inside an operator that has been counted."""

    inside = False


_functional = _Functional()


def note(name: str, nbytes: int) -> None:
    """Something of this name has happened: for process groups that are written in Python."""
    if _open:
        with _lock:
            for counts in _open:
                calls, total = counts[name]
                counts[name] = Count(calls + 1, total + nbytes)


def note_call(method: str, arguments: tuple) -> None:
    """A method of a process group in Python was called, as torch's dispatcher would show it."""
    if _open and not _functional.inside:
        nbytes = 0 if method == "barrier" else max(map(_nbytes, arguments), default=0)
        note(f"c10d.{name_of(method)}", nbytes)


@contextlib.contextmanager
def counting() -> Iterator[Counts]:
    """Count what this rank calls and sends inside the block.

    `c10d.all_reduce` counts what reaches a process group; collectives/recording/counts.py tells of
    all names.

    >>> def step(rank, world_size, device):
    ...     with counting() as counts:
    ...         dist.all_reduce(torch.ones(4))
    ...     return counts
    >>> print(launch(step, 2)[0])
    {'c10d.all_reduce': Count(calls=1, bytes=16)}
    """
    counts = Counts()
    # subtle: only the first of nested blocks watches the dispatcher, which would count twice.
    watch = contextlib.nullcontext() if _open else _dispatcher_watch()
    with _lock:
        _open.append(counts)
    try:
        with watch:
            yield counts
    finally:
        with _lock:
            _open[:] = [other for other in _open if other is not counts]


def _dispatcher_watch() -> contextlib.AbstractContextManager:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            # subtle: a DTensor is asked first, since what it calls inside would not come here. By
            # name: torch.distributed.tensor takes long to import.
            if any(tensor_type.__name__ == "DTensor" for tensor_type in types):
                return NotImplemented
            namespace, _, operator = func._schema.name.partition("::")
            name = operator.removesuffix("_out").removesuffix("_")
            is_call = namespace in ("c10d", "_c10d_functional", "_dtensor") and name not in SILENT
            _functional.inside, before = is_call or _functional.inside, _functional.inside
            try:
                result = func(*args, **(kwargs or {}))
            finally:
                _functional.inside = before
            if is_call:
                name = name_of(name)
                written = _nbytes(result) if namespace == "_c10d_functional" else 0
                nbytes = 0 if name == "barrier" else max(written, *map(_nbytes, args))
                note(f"{namespace}.{name}", nbytes)
            return result

    return Watch()


def _nbytes(value: object) -> int:
    """The bytes of a tensor, or of all tensors in a list of them."""
    if isinstance(value, torch.Tensor):
        return value.nbytes
    return sum(map(_nbytes, value)) if isinstance(value, list | tuple) else 0
