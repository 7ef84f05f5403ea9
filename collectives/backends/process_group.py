"""What our process groups in Python share: torch's calls, checked and put into one shape.

torch.distributed calls a process group in several ways: with lists of one tensor, with options,
and by older names. Here each call is checked and passed on as one of a dozen plain methods
(`_all_reduce`, `_broadcast`, ...), which a backend writes. Each returns a Work; `_start` starts it.
"""

import collections
import functools
from collections.abc import Callable

import torch
import torch.distributed as dist

from collectives.backends import checks


def _ready(value):
    """The tensors of an argument.

    subtle: the result of a functional collective is a tensor without memory, which wraps the true
    one. torch's dispatcher takes that, but calls backends in Python without it.
    """
    if isinstance(value, (list, tuple)):
        return [_ready(one) for one in value]
    return value.trigger_wait() if hasattr(value, "trigger_wait") else value


def _takes_tensors(method: Callable) -> Callable:
    @functools.wraps(method)
    def call(self, *arguments, **options):
        return method(self, *map(_ready, arguments), **options)

    return call


class PythonProcessGroup(dist.ProcessGroup):
    """The base class. A subclass sets `backend`, its name."""

    backend: str

    def __init__(self, options):
        super().__init__(options.group_rank, options.group_size)
        self.timeout = options.timeout.total_seconds()
        self.broken: str | None = None  # why the group cannot be used any more
        self._batch: list[dist.Work] | None = None
        self._name = self._description = ""
        self._kept: collections.deque[dist.Work] = collections.deque(maxlen=100)

    def getBackendName(self) -> str:
        return self.backend

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupDesc(self) -> str:
        return self._description

    def setGroupDesc(self, description: str) -> None:
        self._description = description

    def _check(self, what: str, *tensors: torch.Tensor, root_or_peer: int = 0) -> None:
        if self.broken is not None:
            raise RuntimeError(
                f"{what}: this group cannot be used any more, because {self.broken}: "
                f"make a new one. [{self.backend}]"
            )
        checks.check_rank(what, root_or_peer, self.size(), self.backend)
        checks.check_layout(what, tensors, self.backend)

    def _check_list(self, what: str, pieces: list, own: torch.Tensor, index: int) -> None:
        checks.check_list(what, pieces, self.size(), self.backend)
        checks.check_own_piece(what, pieces[index], own, self.backend)

    def _start(self, work: dist.Work, opts=None) -> dist.Work:
        """Start a call. `opts.asyncOp` says whether the caller goes on meanwhile."""
        if self._batch is not None:
            self._batch.append(work)
        return work

    # Reductions

    @_takes_tensors
    def allreduce(self, tensors, opts=None):
        self._check("all_reduce", *tensors)
        work = self._start(self._all_reduce(tensors, _op(opts)), opts)
        # subtle: Join gives the Work of its single number to DDP in C++, and drops it. If nothing
        # in Python held the Work, C++ would no longer find the methods that are written here.
        if tensors[0].numel() == 1:
            self._kept.append(work)
        return work

    allreduce_coalesced = allreduce

    @_takes_tensors
    def reduce(self, tensors, opts):
        (tensor,) = tensors
        self._check("reduce", tensor, root_or_peer=opts.rootRank)
        return self._start(self._reduce(tensor, opts.rootRank, _op(opts)), opts)

    @_takes_tensors
    def reduce_scatter(self, outputs, inputs, opts):
        what, (output,), (pieces,) = "reduce_scatter", outputs, inputs
        self._check(what, output, *pieces)
        self._check_list(what, pieces, output, self.rank())
        return self._start(self._reduce_scatter(output, pieces, _op(opts)), opts)

    def reduce_scatter_single(self, output, whole, opts=None):
        return self.reduce_scatter_single_coalesced([output], [whole], opts)

    @_takes_tensors
    def reduce_scatter_single_coalesced(self, outputs, wholes, opts=None):
        what = "reduce_scatter_tensor"
        self._check(what, *outputs, *wholes)
        for output, whole in zip(outputs, wholes, strict=True):
            checks.check_pieces(what, whole, self.size(), output, self.backend)
        return self._start(self._reduce_scatter_single(outputs, wholes, _op(opts)), opts)

    # Collectives that only move bytes

    @_takes_tensors
    def broadcast(self, tensors, opts):
        self._check("broadcast", *tensors, root_or_peer=opts.rootRank)
        return self._start(self._broadcast(tensors, opts.rootRank), opts)

    def allgather(self, outputs, inputs, opts=None):
        return self.allgather_coalesced(list(map(list, zip(*outputs, strict=True))), inputs, opts)

    @_takes_tensors
    def allgather_coalesced(self, outputs, inputs, opts=None):
        """`outputs[rank][i]` receives that rank's `inputs[i]`. Shapes may differ between ranks."""
        rows = list(zip(*outputs, strict=True))
        self._check("all_gather", *inputs, *(piece for row in rows for piece in row))
        for own, row in zip(inputs, rows, strict=True):
            self._check_list("all_gather", row, own, self.rank())
        return self._start(self._all_gather(rows, inputs), opts)

    def all_gather_single(self, output, own, opts=None):
        return self.all_gather_single_coalesced([output], [own], opts)

    @_takes_tensors
    def all_gather_single_coalesced(self, outputs, inputs, opts=None):
        what = "all_gather_into_tensor"
        self._check(what, *outputs, *inputs)
        for output, own in zip(outputs, inputs, strict=True):
            checks.check_pieces(what, output, self.size(), own, self.backend)
        return self._start(self._all_gather_single(outputs, inputs), opts)

    @_takes_tensors
    def gather(self, outputs, inputs, opts):
        (own,), root = inputs, opts.rootRank
        pieces = outputs[0] if self.rank() == root else []
        self._check("gather", own, *pieces, root_or_peer=root)
        if pieces:
            self._check_list("gather", pieces, own, root)
        return self._start(self._gather(own, pieces, root), opts)

    @_takes_tensors
    def scatter(self, outputs, inputs, opts):
        (own,), root = outputs, opts.rootRank
        pieces = inputs[0] if self.rank() == root else []
        self._check("scatter", own, *pieces, root_or_peer=root)
        if pieces:
            self._check_list("scatter", pieces, own, root)
        return self._start(self._scatter(own, pieces, root), opts)

    @_takes_tensors
    def alltoall(self, outputs, inputs, opts=None):
        what, rank = "all_to_all", self.rank()
        self._check(what, *outputs, *inputs)
        checks.check_list(what, outputs, self.size(), self.backend)
        self._check_list(what, inputs, outputs[rank], rank)
        return self._start(self._all_to_all(outputs, inputs), opts)

    @_takes_tensors
    def all_to_all_single(self, output, whole, output_splits, input_splits, opts=None):
        what = "all_to_all_single"
        self._check(what, output, whole)
        come = checks.lengths_of_parts(what, output, output_splits, self.size(), self.backend)
        go = checks.lengths_of_parts(what, whole, input_splits, self.size(), self.backend)
        return self._start(self._all_to_all_single(output, whole, come, go), opts)

    def barrier(self, opts=None):
        self._check("barrier")
        return self._start(self._barrier(), opts)

    # Point to point

    @_takes_tensors
    def send(self, tensors, dst, tag=0):
        (tensor,) = tensors
        self._check(f"send to rank {dst}", tensor, root_or_peer=dst)
        return self._start(self._send(tensor, dst, tag))

    @_takes_tensors
    def recv(self, tensors, src, tag=0):
        (tensor,) = tensors
        self._check(f"recv from rank {src}", tensor, root_or_peer=src)
        return self._start(self._recv(tensor, src, tag))

    @_takes_tensors
    def recv_anysource(self, tensors, tag=0):
        (tensor,) = tensors
        self._check("recv from any rank", tensor)
        return self._start(self._recv(tensor, None, tag))

    # Calls that begin between these two are waited for as one.

    def _start_coalescing(self, device):
        self._batch = []

    def _end_coalescing(self, device):
        batch, self._batch = self._batch, None
        return Batch(batch)

    # The names that torch calls before 2.13

    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced


class Batch(dist.Work):
    """Several pending calls, waited for as one."""

    def __init__(self, works: list[dist.Work]):
        super().__init__()
        self.works = works

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self.works)

    def wait(self, timeout=None) -> bool:
        return all(work.wait(timeout) for work in self.works)


def new_future(outcome: Callable) -> tuple[torch.futures.Future, torch.futures.Future]:
    """A future of a Work, and the one whose result, None, completes it: `outcome` gives its value.

    subtle: an exception that is set with `set_exception` is known to Python alone. DDP waits in
    C++, takes it for a tensor, and crashes. There only a callback that raises makes a future fail.
    """
    end = torch.futures.Future()
    return end.then(lambda _: outcome()), end


def _op(opts) -> dist.ReduceOp:
    return dist.ReduceOp.SUM if opts is None else opts.reduceOp


@functools.cache
def op_name(op: dist.ReduceOp) -> str:
    """As in "SUM"."""
    ops = dist.ReduceOp.RedOpType.__members__.items()
    return next(name for name, known in ops if op == known)
