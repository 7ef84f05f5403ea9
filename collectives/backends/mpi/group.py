"""The MPI backend: each call of torch.distributed becomes one nonblocking MPI call.

MPI works on the tensors' own memory, so they must be contiguous and on the CPU. Every group has its
own communicator. `send` is synchronous (MPI_Issend): at every size it ends only after its receive
has begun, so a program that runs here does not rely on a buffer.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist

from collectives.backends.mpi.checks import check_layout, check_own_piece, check_pieces
from collectives.backends.mpi.communicator import new_communicator
from collectives.backends.mpi.library import MPI
from collectives.backends.mpi.types import (
    Reduction,
    address,
    as_bytes,
    as_one_block,
    as_pieces,
    as_rows,
    reduction,
)
from collectives.backends.mpi.work import MPIBatch, MPIWork, poll_all


class ProcessGroupMPI(dist.ProcessGroup):
    def __init__(self, options):
        super().__init__(options.group_rank, options.group_size)
        self.timeout = options.timeout.total_seconds()
        self.comm = new_communicator(options)
        self.broken: str | None = None  # why the group cannot be used any more
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
        poll_all()
        # In a broken group a call never ended, and MPI still uses the communicator.
        if self.comm != MPI.COMM_NULL and self.broken is None:
            self.comm.Free()

    def _check(self, what: str, *tensors: torch.Tensor) -> None:
        if self.broken is not None:
            raise RuntimeError(
                f"{what}: this group cannot be used any more, because {self.broken}: "
                "make a new one. [mpi]"
            )
        check_layout(what, tensors)
        poll_all()

    def _work(self, what: str, tensors, *requests: MPI.Request, finish=None) -> MPIWork:
        work = MPIWork(what, self, list(requests), tensors, finish)
        if self._batch is not None:
            self._batch.append(work)
        return work

    def _finish(self, kind: Reduction, *tensors: torch.Tensor) -> Callable | None:
        """For AVG, which MPI does not have: divide the sums when they have arrived."""
        if not kind.average:
            return None
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
        finish = self._finish(kinds[0], *tensors)
        return self._work("all_reduce", tensors, *requests, finish=finish)

    allreduce_coalesced = allreduce

    def reduce(self, tensors, opts):
        (tensor,), root = tensors, opts.rootRank
        self._check("reduce", tensor)
        kind = reduction(opts.reduceOp, tensor.dtype)
        message = [address(tensor), tensor.numel(), kind.datatype]
        if self.rank() != root:
            return self._work("reduce", tensors, self.comm.Ireduce(message, None, kind.op, root))
        request = self.comm.Ireduce(MPI.IN_PLACE, message, kind.op, root)
        return self._work("reduce", tensors, request, finish=self._finish(kind, tensor))

    def reduce_scatter(self, outputs, inputs, opts):
        (output,), (pieces,) = outputs, inputs
        self._check("reduce_scatter", output, *pieces)
        check_own_piece("reduce_scatter", output, pieces[self.rank()])
        kind = reduction(opts.reduceOp, output.dtype)
        counts = [piece.numel() for piece in pieces]
        whole, memory = as_one_block(pieces)
        request = self.comm.Ireduce_scatter(
            [memory, sum(counts), kind.datatype],
            [address(output), output.numel(), kind.datatype],
            counts,
            kind.op,
        )
        finish = self._finish(kind, output)
        return self._work("reduce_scatter", [output, whole], request, finish=finish)

    def reduce_scatter_single(self, output, whole, opts=None):
        return self.reduce_scatter_single_coalesced([output], [whole], opts)

    def reduce_scatter_single_coalesced(self, outputs, wholes, opts=None):
        op = dist.ReduceOp.SUM if opts is None else opts.reduceOp
        self._check("reduce_scatter_tensor", *outputs, *wholes)
        requests = []
        for output, whole in zip(outputs, wholes, strict=True):
            check_pieces("reduce_scatter_tensor", whole, self.size(), output)
            kind = reduction(op, output.dtype)
            message = [address(whole), output.numel(), kind.datatype]
            result = [address(output), output.numel(), kind.datatype]
            requests.append(self.comm.Ireduce_scatter_block(message, result, kind.op))
        finish = self._finish(kind, *outputs)
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
        """`outputs[rank][i]` receives that rank's `inputs[i]`. Shapes may differ between ranks."""
        pieces = list(zip(*outputs, strict=True))
        self._check("all_gather", *inputs, *(piece for row in pieces for piece in row))
        requests = []
        for own, row in zip(inputs, pieces, strict=True):
            check_own_piece("all_gather", row[self.rank()], own)
            requests.append(self.comm.Iallgatherv(as_bytes(own), as_pieces(row)))
        return self._work("all_gather", [*inputs, *pieces], *requests)

    def all_gather_single(self, output, own, opts=None):
        return self.all_gather_single_coalesced([output], [own], opts)

    def all_gather_single_coalesced(self, outputs, inputs, opts=None):
        self._check("all_gather_into_tensor", *outputs, *inputs)
        requests = []
        for output, own in zip(outputs, inputs, strict=True):
            check_pieces("all_gather_into_tensor", output, self.size(), own)
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
        check_own_piece("gather", pieces[root], own)
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
        check_own_piece("scatter", own, pieces[root])
        return self._work(
            "scatter", [own, *pieces], self.comm.Iscatterv(as_pieces(pieces), as_bytes(own), root)
        )

    def alltoall(self, outputs, inputs, opts=None):
        self._check("all_to_all", *outputs, *inputs)
        check_own_piece("all_to_all", outputs[self.rank()], inputs[self.rank()])
        return self._work(
            "all_to_all",
            [*outputs, *inputs],
            self.comm.Ialltoallv(as_pieces(inputs), as_pieces(outputs)),
        )

    def all_to_all_single(self, output, whole, output_splits, input_splits, opts=None):
        self._check("all_to_all_single", output, whole)
        message = as_rows(whole, input_splits, self.size())
        result = as_rows(output, output_splits, self.size())
        request = self.comm.Ialltoallv(message, result)
        return self._work("all_to_all_single", [output, whole], request)

    def barrier(self, opts=None):
        self._check("barrier")
        return self._work("barrier", [], self.comm.Ibarrier())

    # Point to point

    def send(self, tensors, dst, tag=0):
        (tensor,), what = tensors, f"send to rank {dst}"
        self._check(what, tensor)
        return self._work(what, tensors, self.comm.Issend(as_bytes(tensor), dst, tag))

    def recv(self, tensors, src, tag=0):
        (tensor,) = tensors
        what = f"recv from {'any rank' if src == MPI.ANY_SOURCE else f'rank {src}'}"
        self._check(what, tensor)

        def finish(status):
            size = status.Get_count(MPI.BYTE)
            if size != tensor.nbytes:
                raise RuntimeError(
                    f"the message has {size} bytes, the tensor for it {tensor.nbytes}"
                )

        request = self.comm.Irecv(as_bytes(tensor), src, tag)
        return self._work(what, tensors, request, finish=finish)

    def recv_anysource(self, tensors, tag=0):
        return self.recv(tensors, MPI.ANY_SOURCE, tag)

    # Calls that begin between these two are waited for as one.

    def _start_coalescing(self, device):
        self._batch = []

    def _end_coalescing(self, device):
        batch, self._batch = self._batch, None
        return MPIBatch(batch)

    # The names that torch calls before 2.13

    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    alltoall_base = all_to_all_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
