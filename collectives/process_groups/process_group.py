"""What our process groups in Python share: torch's calls, checked and put into one shape.

torch.distributed calls a process group in several ways: with lists of one tensor, with options,
and by older names. Here each call is checked and passed on as one of a dozen plain methods
(`_all_reduce`, `_broadcast`, ...), which a backend writes. Each returns a Work; `_start` starts it.
"""

import collections
import functools
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.futures import Future

from collectives.algorithms.tensors import check_layout
from collectives.recording import counts
from collectives.semantics.check import kind


def _ready(value: Any) -> Any:
    """The tensors of an argument.

    subtle: the result of a functional collective is a tensor without memory, which wraps the true
    one. torch's dispatcher takes that, but calls backends in Python without it. And autograd marks
    the output of a functional collective while the call still runs: of a detached one it knows
    nothing.
    """
    if type(value) is torch.Tensor:  # nearly always
        return value.detach()
    if isinstance(value, (list, tuple)):
        return [_ready(one) for one in value]
    return value.trigger_wait() if hasattr(value, "trigger_wait") else value


def _takes_tensors(method: Callable[..., dist.Work]) -> Callable[..., dist.Work]:
    @functools.wraps(method)
    def call(self: "PythonProcessGroup", *arguments: Any, **options: Any) -> dist.Work:
        counts.note_call(method.__name__, arguments)
        return method(self, *map(_ready, arguments), **options)

    return call


class PythonProcessGroup(dist.ProcessGroup):
    """The base class. A subclass sets `backend`, its name, and writes the methods below.

    Roots and peers are ranks of the group, and tensors have no gaps. A Work of one's own derives
    from `dist.Work` and has `wait(timeout)`, `is_completed()`, `_source_rank()` for a message from
    anybody, and `get_future()` for DDP. torch calls `shutdown()` and `abort()` at the end.
    """

    backend: str

    _all_reduce: Callable[..., dist.Work]  # (tensors, op)
    _reduce: Callable[..., dist.Work]  # (tensor, root, op)
    _reduce_scatter: Callable[..., dist.Work]  # (output, pieces, op): a piece for each rank
    _reduce_scatter_single: Callable[..., dist.Work]  # (outputs, wholes, op)
    _broadcast: Callable[..., dist.Work]  # (tensors, root)
    _all_gather: Callable[..., dist.Work]  # (rows, inputs): rows[i][rank] receives inputs[i]
    _all_gather_single: Callable[..., dist.Work]  # (outputs, inputs)
    _gather: Callable[..., dist.Work]  # (own, pieces, root): pieces of the root alone
    _scatter: Callable[..., dist.Work]  # (own, pieces, root)
    _all_to_all: Callable[..., dist.Work]  # (outputs, inputs)
    _all_to_all_single: Callable[..., dist.Work]  # (output, whole, come, go): elements by rank
    _barrier: Callable[..., dist.Work]  # ()
    _send: Callable[..., dist.Work]  # (tensor, peer, tag)
    _recv: Callable[..., dist.Work]  # (tensor, peer or None for anybody, tag)

    def __init__(self, options: Any):
        super().__init__(options.group_rank, options.group_size)  # type: ignore[call-arg]
        self._rank: int
        self._size: int
        self._rank, self._size = options.group_rank, options.group_size
        self.timeout = options.timeout.total_seconds()
        self.broken: str | None = None  # why the group cannot be used any more
        self._batch: list[dist.Work] | None = None
        self._name = self._description = ""
        self._kept: collections.deque[dist.Work] = collections.deque(maxlen=100)

    def rank(self) -> int:  # asking C++ takes several µs, in every call
        return self._rank

    def size(self) -> int:
        return self._size

    def getBackendName(self) -> str:
        return self.backend

    def _get_backend(self, device: torch.device) -> Any:
        # torch 2.14 asks a group in Python, too, for its backend before a batch of messages.
        return self

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
        if not 0 <= root_or_peer < self._size:
            self._refuse(f"{what}: the group has ranks 0 to {self._size - 1}, not {root_or_peer}.")
        check_layout(f"{what}: {self.backend}", *tensors)

    def _refuse(self, reason: str) -> NoReturn:
        raise ValueError(f"{reason} [{self.backend}]")

    def _check_length(self, what: str, pieces: list[torch.Tensor]) -> None:
        if len(pieces) != self._size:
            self._refuse(f"{what}: {len(pieces)} tensors in a list for {self._size} ranks.")

    def _check_list(self, what: str, pieces: list[torch.Tensor], own: torch.Tensor) -> None:
        """A piece for each rank, and this rank's like its tensor in the other buffer."""
        self._check_length(what, pieces)
        piece = pieces[self._rank]
        if piece.numel() != own.numel() or piece.dtype != own.dtype:
            self._refuse(
                f"{what}: this rank's own piece is {kind(own)}, its place is {kind(piece)}: "
                "they must be alike."
            )

    def _check_whole(self, what: str, whole: torch.Tensor, piece: torch.Tensor) -> None:
        if whole.numel() != self._size * piece.numel() or whole.dtype != piece.dtype:
            self._refuse(f"{what}: {kind(whole)} is not {self._size} times {kind(piece)}.")

    def _lengths_of_parts(self, what: str, tensor: torch.Tensor, splits: list[int]) -> list[int]:
        """The number of elements for each rank: `splits` rows each, or equal parts of all rows."""
        rows, size = tensor.shape[0] if tensor.dim() else 1, self._size
        splits = [int(count) for count in splits]
        if not splits and rows % size:
            self._refuse(f"{what}: {rows} rows cannot be split evenly among {size} ranks: say how.")
        splits = splits or [rows // size] * size
        if len(splits) != size or sum(splits) != rows:
            self._refuse(f"{what}: splits {splits} do not divide {rows} rows among {size} ranks.")
        row = tensor.numel() // max(1, rows)
        return [count * row for count in splits]

    def _start(self, work: dist.Work, opts: Any = None) -> dist.Work:
        """Start a call. `opts.asyncOp` says whether the caller goes on meanwhile."""
        if self._batch is not None:
            self._batch.append(work)
        return work

    # Reductions

    @_takes_tensors
    def allreduce(self, tensors: Any, opts: Any = None) -> dist.Work:
        self._check("all_reduce", *tensors)
        work = self._start(self._all_reduce(tensors, _op(opts)), opts)
        # subtle: Join gives the Work of its single number to DDP in C++, and drops it. If nothing
        # in Python held the Work, C++ would no longer find the methods that are written here.
        if tensors[0].numel() == 1:
            self._kept.append(work)
        return work

    allreduce_coalesced = allreduce

    @_takes_tensors
    def reduce(self, tensors: Any, opts: Any) -> dist.Work:
        (tensor,) = tensors
        self._check("reduce", tensor, root_or_peer=opts.rootRank)
        return self._start(self._reduce(tensor, opts.rootRank, _op(opts)), opts)

    @_takes_tensors
    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any) -> dist.Work:
        what, (output,), (pieces,) = "reduce_scatter", outputs, inputs
        self._check(what, output, *pieces)
        self._check_list(what, pieces, output)
        return self._start(self._reduce_scatter(output, pieces, _op(opts)), opts)

    def reduce_scatter_single(self, output: Any, whole: Any, opts: Any = None) -> dist.Work:
        return self.reduce_scatter_single_coalesced([output], [whole], opts)

    @_takes_tensors
    def reduce_scatter_single_coalesced(
        self, outputs: Any, wholes: Any, opts: Any = None
    ) -> dist.Work:
        what = "reduce_scatter_single"
        self._check(what, *outputs, *wholes)
        for output, whole in zip(outputs, wholes, strict=True):
            self._check_whole(what, whole, output)
        return self._start(self._reduce_scatter_single(outputs, wholes, _op(opts)), opts)

    # Collectives that only move bytes

    @_takes_tensors
    def broadcast(self, tensors: Any, opts: Any) -> dist.Work:
        self._check("broadcast", *tensors, root_or_peer=opts.rootRank)
        return self._start(self._broadcast(tensors, opts.rootRank), opts)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:
        return self.allgather_coalesced(list(map(list, zip(*outputs, strict=True))), inputs, opts)

    @_takes_tensors
    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:
        """`outputs[rank][i]` receives that rank's `inputs[i]`. Shapes may differ between ranks."""
        rows = list(zip(*outputs, strict=True))
        self._check("all_gather", *inputs, *(piece for row in rows for piece in row))
        for own, row in zip(inputs, rows, strict=True):
            self._check_list("all_gather", list(row), own)
        return self._start(self._all_gather(rows, inputs), opts)

    def all_gather_single(self, output: Any, own: Any, opts: Any = None) -> dist.Work:
        return self.all_gather_single_coalesced([output], [own], opts)

    @_takes_tensors
    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:
        what = "all_gather_single"
        self._check(what, *outputs, *inputs)
        for output, own in zip(outputs, inputs, strict=True):
            self._check_whole(what, output, own)
        return self._start(self._all_gather_single(outputs, inputs), opts)

    @_takes_tensors
    def gather(self, outputs: Any, inputs: Any, opts: Any) -> dist.Work:
        (own,), root = inputs, opts.rootRank
        pieces = outputs[0] if self.rank() == root else []
        self._check("gather", own, *pieces, root_or_peer=root)
        if pieces:
            self._check_list("gather", pieces, own)
        return self._start(self._gather(own, pieces, root), opts)

    @_takes_tensors
    def gather_single(self, output: Any, own: Any, opts: Any) -> dist.Work:
        what, root, pieces = "gather_single", opts.rootRank, []
        self._check(what, own, output, root_or_peer=root)
        if self.rank() == root:  # elsewhere torch passes an empty tensor
            self._check_whole(what, output, own)
            pieces = list(output.view(-1).tensor_split(self._size))
        return self._start(self._gather(own, pieces, root), opts)

    @_takes_tensors
    def scatter(self, outputs: Any, inputs: Any, opts: Any) -> dist.Work:
        (own,), root = outputs, opts.rootRank
        pieces = inputs[0] if self.rank() == root else []
        self._check("scatter", own, *pieces, root_or_peer=root)
        if pieces:
            self._check_list("scatter", pieces, own)
        return self._start(self._scatter(own, pieces, root), opts)

    @_takes_tensors
    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:
        what = "all_to_all"
        self._check(what, *outputs, *inputs)
        self._check_length(what, outputs)
        self._check_list(what, inputs, outputs[self._rank])
        return self._start(self._all_to_all(outputs, inputs), opts)

    @_takes_tensors
    def all_to_all_single(
        self, output: Any, whole: Any, output_splits: Any, input_splits: Any, opts: Any = None
    ) -> dist.Work:
        what = "all_to_all_single"
        self._check(what, output, whole)
        recv = self._lengths_of_parts(what, output, output_splits)
        send = self._lengths_of_parts(what, whole, input_splits)
        return self._start(self._all_to_all_single(output, whole, recv, send), opts)

    @_takes_tensors
    def barrier(self, opts: Any = None) -> dist.Work:
        self._check("barrier")
        return self._start(self._barrier(), opts)

    # Point to point

    @_takes_tensors
    def send(self, tensors: Any, dst: int, tag: int = 0) -> dist.Work:
        (tensor,) = tensors
        self._check(f"send to rank {dst}", tensor, root_or_peer=dst)
        return self._start(self._send(tensor, dst, tag))

    @_takes_tensors
    def recv(self, tensors: Any, src: int, tag: int = 0) -> dist.Work:
        (tensor,) = tensors
        self._check(f"recv from rank {src}", tensor, root_or_peer=src)
        return self._start(self._recv(tensor, src, tag))

    @_takes_tensors
    def recv_anysource(self, tensors: Any, tag: int = 0) -> dist.Work:
        (tensor,) = tensors
        self._check("recv from any rank", tensor)
        return self._start(self._recv(tensor, None, tag))

    # Calls that begin between these two are waited for as one.
    def _start_coalescing(self, device: torch.device) -> None:
        self._batch = []

    def _end_coalescing(self, device: torch.device) -> dist.Work:
        batch, self._batch = self._batch, None
        return _Batch(batch or [])

    # What torch 2.9 to 2.12 call these methods.
    _allgather_base = all_gather_single  # type: ignore[assignment]  # its parameters have other names
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single  # type: ignore[assignment]
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single


def _op(opts: Any) -> Any:
    return dist.ReduceOp.SUM if opts is None else opts.reduceOp


class PythonWork(dist.Work):
    """What pending calls have in common. A subclass has `is_completed`, `wait` and `get_future`."""

    what: str  # as in "all_reduce"
    group: Any
    tensors: list[torch.Tensor]
    source: int  # the rank that a message came from
    error: BaseException | None = None
    future: Future[list[torch.Tensor]] | None = None
    future_end: Future[None] | None = None  # completes the one above

    def _where(self) -> str:
        return f"rank {self.group.rank()}/{self.group.size()}: {self.what}"

    def is_success(self) -> bool:
        return bool(self.is_completed()) and self.error is None

    def exception(self) -> BaseException | None:
        return self.error

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> list[torch.Tensor]:
        return self.tensors

    def _source_rank(self) -> int:
        return self.source

    source_rank = _source_rank


class _Batch(dist.Work):
    """Several pending calls, waited for as one."""

    def __init__(self, works: list[dist.Work]):
        super().__init__()
        self.works = works

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self.works)

    def wait(self, timeout: timedelta | None = None) -> bool:
        return all(work.wait(timeout) for work in self.works)  # type: ignore[arg-type]


def new_future(outcome: Callable[[], Any]) -> tuple["Future[Any]", "Future[None]"]:
    """A future of a Work, and the one whose result, None, completes it: `outcome` gives its value.

    subtle: an exception that is set with `set_exception` is known to Python alone. DDP waits in
    C++, takes it for a tensor, and crashes. There only a callback that raises makes a future fail.
    """
    end: Future[None] = Future()
    return end.then(lambda _: outcome()), end
