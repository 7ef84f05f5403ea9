"""The MPI backend: each call of torch.distributed becomes one nonblocking MPI call on the tensors' own memory.

Tensors are contiguous and on the CPU. A group is a communicator of its own. `send` is synchronous (MPI_Issend): it is done when its
receive has begun, at every size, so that a program that runs here does not lean on a buffer.
"""

import torch
import torch.distributed as dist

from collectives.backends.mpi import store as mpi_store
from collectives.backends.mpi import work as mpi_work
from collectives.backends.mpi.library import MPI, world
from collectives.backends.mpi.types import (
    address,
    as_bytes,
    as_pieces,
    as_rows,
    in_one_piece,
    reduction,
)
from collectives.backends.mpi.work import MPIWork


class ProcessGroupMPI(dist.ProcessGroup):
    def __init__(self, options):
        super().__init__(options.group_rank, options.group_size)
        self.timeout = options.timeout.total_seconds()
        self.comm = _communicator(options)
        self.broken: str | None = None
        self._batch: list[MPIWork] | None = None
        self._name = self._description = ""

    def getBackendName(self) -> str:
        return "mpi"

    def getGroupName(self) -> str:
        return self._name

    def setGroupName(self, name: str) -> None:
        self._name = name

    def getGroupDesc(self) -> str:
        return self._description

    def setGroupDesc(self, description: str) -> None:
        self._description = description

    def shutdown(self) -> None:
        mpi_work.look_at_all()
        if (
            self.comm != MPI.COMM_NULL and self.broken is None
        ):  # MPI still uses the communicator of a call that never ended
            self.comm.Free()

    def _check(self, what: str, *tensors: torch.Tensor) -> None:
        if self.broken is not None:
            raise RuntimeError(
                f"{what}: this group cannot be used any more, because {self.broken}: make a new one. [mpi]"
            )
        for tensor in tensors:
            if tensor.device.type != "cpu" or tensor.layout != torch.strided:
                raise ValueError(
                    f"{what}: mpi takes dense tensors on the CPU, this one is {tensor.layout} on {tensor.device}."
                )
            if not tensor.is_contiguous():
                raise ValueError(
                    f"{what}: mpi takes contiguous tensors, this one has strides {tensor.stride()}: use contiguous()."
                )
        mpi_work.look_at_all()

    def _work(self, what: str, tensors, *requests: MPI.Request, finish=None) -> MPIWork:
        work = MPIWork(what, self, list(requests), tensors, finish)
        if self._batch is not None:
            self._batch.append(work)
        return work

    def _divide(self, *tensors: torch.Tensor):
        """The last step of AVG, when the sums are there."""
        return lambda _: [tensor.detach().div_(self.size()) for tensor in tensors]

    # Reductions

    def allreduce(self, tensors, opts=None):
        op = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        self._check("all_reduce", *tensors)
        kinds = [reduction(op, tensor.dtype) for tensor in tensors]
        requests = [
            self.comm.Iallreduce(
                MPI.IN_PLACE, [address(tensor), tensor.numel(), kind.datatype], kind.op
            )
            for tensor, kind in zip(tensors, kinds, strict=True)
        ]
        return self._work(
            "all_reduce",
            tensors,
            *requests,
            finish=self._divide(*tensors) if kinds[0].average else None,
        )

    allreduce_coalesced = allreduce

    def reduce(self, tensors, opts):
        (tensor,), root = tensors, opts.rootRank
        self._check("reduce", tensor)
        kind = reduction(opts.reduceOp, tensor.dtype)
        message = [address(tensor), tensor.numel(), kind.datatype]
        if self.rank() != root:
            return self._work("reduce", tensors, self.comm.Ireduce(message, None, kind.op, root))
        request = self.comm.Ireduce(MPI.IN_PLACE, message, kind.op, root)
        return self._work(
            "reduce", tensors, request, finish=self._divide(tensor) if kind.average else None
        )

    def reduce_scatter(self, outputs, inputs, opts):
        (output,), (pieces,) = outputs, inputs
        self._check("reduce_scatter", output, *pieces)
        _must_fit("reduce_scatter", output, pieces[self.rank()])
        kind = reduction(opts.reduceOp, output.dtype)
        counts = [piece.numel() for piece in pieces]
        whole, memory = in_one_piece(pieces)
        request = self.comm.Ireduce_scatter(
            [memory, sum(counts), kind.datatype],
            [address(output), output.numel(), kind.datatype],
            counts,
            kind.op,
        )
        return self._work(
            "reduce_scatter",
            [output, whole],
            request,
            finish=self._divide(output) if kind.average else None,
        )

    def reduce_scatter_single(self, output, whole, opts=None):
        return self.reduce_scatter_single_coalesced([output], [whole], opts)

    def reduce_scatter_single_coalesced(self, outputs, wholes, opts=None):
        op = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        self._check("reduce_scatter_tensor", *outputs, *wholes)
        requests = []
        for output, whole in zip(outputs, wholes, strict=True):
            _must_hold("reduce_scatter_tensor", whole, self.size(), output)
            kind = reduction(op, output.dtype)
            message, result = (
                [address(one), output.numel(), kind.datatype] for one in (whole, output)
            )
            requests.append(self.comm.Ireduce_scatter_block(message, result, kind.op))
        finish = self._divide(*outputs) if kind.average else None
        return self._work("reduce_scatter_tensor", [*outputs, *wholes], *requests, finish=finish)

    # Collectives that only move bytes

    def broadcast(self, tensors, opts):
        self._check("broadcast", *tensors)
        return self._work(
            "broadcast",
            tensors,
            *(self.comm.Ibcast(as_bytes(tensor), opts.rootRank) for tensor in tensors),
        )

    def allgather(self, outputs, inputs, opts=None):
        return self.allgather_coalesced(list(map(list, zip(*outputs, strict=True))), inputs, opts)

    def allgather_coalesced(self, outputs, inputs, opts=None):
        """`outputs[rank][i]` receives that rank's `inputs[i]`, whose shape may differ from ours."""
        pieces = list(zip(*outputs, strict=True))
        self._check("all_gather", *inputs, *(piece for row in pieces for piece in row))
        requests = []
        for own, row in zip(inputs, pieces, strict=True):
            _must_fit("all_gather", row[self.rank()], own)
            requests.append(self.comm.Iallgatherv(as_bytes(own), as_pieces(row)))
        return self._work("all_gather", [*inputs, *pieces], *requests)

    def all_gather_single(self, output, own, opts=None):
        return self.all_gather_single_coalesced([output], [own], opts)

    def all_gather_single_coalesced(self, outputs, inputs, opts=None):
        self._check("all_gather_into_tensor", *outputs, *inputs)
        requests = []
        for output, own in zip(outputs, inputs, strict=True):
            _must_hold("all_gather_into_tensor", output, self.size(), own)
            requests.append(
                self.comm.Iallgather(as_bytes(own), [address(output), own.nbytes, MPI.BYTE])
            )
        return self._work("all_gather_into_tensor", [*outputs, *inputs], *requests)

    def gather(self, outputs, inputs, opts):
        (own,), root = inputs, opts.rootRank
        if self.rank() != root:
            self._check("gather", own)
            return self._work("gather", inputs, self.comm.Igatherv(as_bytes(own), None, root))
        (pieces,) = outputs
        self._check("gather", own, *pieces)
        _must_fit("gather", pieces[root], own)
        return self._work(
            "gather", [own, *pieces], self.comm.Igatherv(as_bytes(own), as_pieces(pieces), root)
        )

    def scatter(self, outputs, inputs, opts):
        (own,), root = outputs, opts.rootRank
        if self.rank() != root:
            self._check("scatter", own)
            return self._work("scatter", outputs, self.comm.Iscatterv(None, as_bytes(own), root))
        (pieces,) = inputs
        self._check("scatter", own, *pieces)
        _must_fit("scatter", own, pieces[root])
        return self._work(
            "scatter", [own, *pieces], self.comm.Iscatterv(as_pieces(pieces), as_bytes(own), root)
        )

    def alltoall(self, outputs, inputs, opts=None):
        self._check("all_to_all", *outputs, *inputs)
        _must_fit("all_to_all", outputs[self.rank()], inputs[self.rank()])
        return self._work(
            "all_to_all",
            [*outputs, *inputs],
            self.comm.Ialltoallv(as_pieces(inputs), as_pieces(outputs)),
        )

    def all_to_all_single(self, output, whole, output_splits, input_splits, opts=None):
        self._check("all_to_all_single", output, whole)
        given, taken = (
            as_rows(one, splits, self.size())
            for one, splits in ((whole, input_splits), (output, output_splits))
        )
        return self._work("all_to_all_single", [output, whole], self.comm.Ialltoallv(given, taken))

    def barrier(self, opts=None):
        self._check("barrier")
        return self._work("barrier", [], self.comm.Ibarrier())

    # Point to point

    def send(self, tensors, to, tag=0):
        (tensor,), what = tensors, f"send to rank {to}"
        self._check(what, tensor)
        return self._work(what, tensors, self.comm.Issend(as_bytes(tensor), to, tag))

    def recv(self, tensors, source, tag=0):
        (tensor,), what = (
            tensors,
            "recv from any rank" if source == MPI.ANY_SOURCE else f"recv from rank {source}",
        )
        self._check(what, tensor)

        def finish(status):
            if (got := status.Get_count(MPI.BYTE)) != tensor.nbytes:
                raise RuntimeError(
                    f"the message has {got} bytes, the tensor for it {tensor.nbytes}"
                )

        return self._work(
            what, tensors, self.comm.Irecv(as_bytes(tensor), source, tag), finish=finish
        )

    def recv_anysource(self, tensors, tag=0):
        return self.recv(tensors, MPI.ANY_SOURCE, tag)

    # Between these two, what is begun is collected to be waited for as one.

    def _start_coalescing(self, device):
        self._batch = []

    def _end_coalescing(self, device):
        batch, self._batch = self._batch, None
        return mpi_work.MPIBatch(batch)

    # The names that torch before 2.13 calls

    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced


def _communicator(options) -> MPI.Comm:
    """A communicator for the group's ranks alone; only they take part, and each waits for the others up to the time limit."""
    everyone = world()
    ranks = options.global_ranks_in_group or list(range(options.group_size))
    mine = ranks[options.group_rank]
    if mine != everyone.rank or max(ranks) >= everyone.size:
        raise ValueError(
            f"rank {mine} of {len(ranks)} is rank {everyone.rank} of {everyone.size} to MPI: start the script with mpiexec, and "
            "take rank and world size from MPI (init_method='mpi://')."
        )
    # MPI itself would wait for ever.
    if options.store.add("came", 1) == len(ranks):
        options.store.set("all came", "")
    options.store.wait(["all came"], options.timeout)
    mpi_store.forget_shared_memory()
    group = everyone.group.Incl(ranks)
    comm = everyone.Create_group(group)
    group.Free()
    return comm


def _kind(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _must_fit(what: str, one: torch.Tensor, other: torch.Tensor) -> None:
    if one.numel() != other.numel() or one.dtype != other.dtype:
        raise ValueError(
            f"{what}: this rank's own piece is {_kind(other)}, its place is {_kind(one)}: they must be alike. [mpi]"
        )


def _must_hold(what: str, whole: torch.Tensor, pieces: int, piece: torch.Tensor) -> None:
    if whole.numel() != pieces * piece.numel() or whole.dtype != piece.dtype:
        raise ValueError(f"{what}: {_kind(whole)} is not {pieces} times {_kind(piece)}. [mpi]")
