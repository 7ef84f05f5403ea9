"""The MPI backend: each call of torch.distributed becomes one nonblocking MPI call.

MPI works on the tensors' own memory, so they must be contiguous and on the CPU. Every group has its
own communicator. `send` is synchronous (MPI_Issend): at every size it ends only after its receive
has begun, so a program that runs here does not rely on a buffer.
"""

from collections.abc import Callable
from typing import Any

import torch

from collectives.process_groups.mpi.library import MPI, new_communicator, receive
from collectives.process_groups.mpi.types import (
    MpiReduction,
    address,
    as_bytes,
    as_one_block,
    as_parts,
    as_pieces,
    reduction,
)
from collectives.process_groups.mpi.work import MPIWork, poll_all
from collectives.process_groups.process_group import PythonProcessGroup


class ProcessGroupMPI(PythonProcessGroup):
    backend = "mpi"

    def __init__(self, options: Any, own_options: Any = None):
        super().__init__(options)
        self.comm = new_communicator(options)

    def shutdown(self) -> None:
        poll_all()
        # In a broken group a call never ended, and MPI still uses the communicator.
        if self.comm != MPI.COMM_NULL and self.broken is None:
            self.comm.Free()

    def _check(self, what: str, *tensors: torch.Tensor, root_or_peer: int = 0) -> None:
        super()._check(what, *tensors, root_or_peer=root_or_peer)
        poll_all()

    def _work(
        self,
        what: str,
        tensors: list[Any],
        *requests: Any,
        finish: Callable[[MPI.Status], Any] | None = None,
    ) -> MPIWork:
        return MPIWork(what, self, list(requests), tensors, finish)

    def _finish(
        self, kind: MpiReduction, *tensors: torch.Tensor
    ) -> Callable[[MPI.Status], Any] | None:
        """For AVG, which MPI does not have: divide the sums when they have arrived."""
        if not kind.average:
            return None
        return lambda _: [tensor.detach().div_(self.size()) for tensor in tensors]

    # Reductions

    def _all_reduce(self, tensors: list[torch.Tensor], op: Any) -> MPIWork:
        kinds = [reduction(op, tensor.dtype) for tensor in tensors]
        requests = [
            self.comm.Iallreduce(
                MPI.IN_PLACE, [address(tensor), tensor.numel(), kind.datatype], kind.op
            )
            for tensor, kind in zip(tensors, kinds, strict=True)
        ]
        finish = self._finish(kinds[0], *tensors)
        return self._work("all_reduce", tensors, *requests, finish=finish)

    def _reduce(self, tensor: torch.Tensor, root: int, op: Any) -> MPIWork:
        kind = reduction(op, tensor.dtype)
        message = [address(tensor), tensor.numel(), kind.datatype]
        if self.rank() != root:
            return self._work("reduce", [tensor], self.comm.Ireduce(message, None, kind.op, root))
        request = self.comm.Ireduce(MPI.IN_PLACE, message, kind.op, root)
        return self._work("reduce", [tensor], request, finish=self._finish(kind, tensor))

    def _reduce_scatter(self, output: torch.Tensor, pieces: list[torch.Tensor], op: Any) -> MPIWork:
        kind = reduction(op, output.dtype)
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

    def _reduce_scatter_single(
        self, outputs: list[torch.Tensor], wholes: list[torch.Tensor], op: Any
    ) -> MPIWork:
        requests, given = [], []
        for output, whole in zip(outputs, wholes, strict=True):
            kind = reduction(op, output.dtype)
            # MPI refuses an output inside of the input, and that on some of the ranks only.
            if output.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr():
                whole = whole.clone()
            given.append(whole)
            message = [address(whole), output.numel(), kind.datatype]
            result = [address(output), output.numel(), kind.datatype]
            requests.append(self.comm.Ireduce_scatter_block(message, result, kind.op))
        finish = self._finish(kind, *outputs)
        return self._work("reduce_scatter_single", [*outputs, *given], *requests, finish=finish)

    # Collectives that only move bytes

    def _broadcast(self, tensors: list[torch.Tensor], root: int) -> MPIWork:
        requests = (self.comm.Ibcast(as_bytes(tensor), root) for tensor in tensors)
        return self._work("broadcast", tensors, *requests)

    def _all_gather(self, rows: list[Any], inputs: list[torch.Tensor]) -> MPIWork:
        requests = [
            self.comm.Iallgatherv(as_bytes(own), as_pieces(row))
            for own, row in zip(inputs, rows, strict=True)
        ]
        return self._work("all_gather", [*inputs, *rows], *requests)

    def _all_gather_single(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor]
    ) -> MPIWork:
        requests = []
        for output, own in zip(outputs, inputs, strict=True):
            # The input may be the rank's own piece of the output: MPI wants to be told so.
            is_there = own.data_ptr() == output.data_ptr() + self.rank() * own.nbytes
            message = MPI.IN_PLACE if is_there else as_bytes(own)
            result = [address(output), own.nbytes, MPI.BYTE]
            requests.append(self.comm.Iallgather(message, result))
        return self._work("all_gather_single", [*outputs, *inputs], *requests)

    def _gather(self, own: torch.Tensor, pieces: list[torch.Tensor], root: int) -> MPIWork:
        result = as_pieces(pieces) if self.rank() == root else None
        request = self.comm.Igatherv(as_bytes(own), result, root)
        return self._work("gather", [own, *pieces], request)

    def _scatter(self, own: torch.Tensor, pieces: list[torch.Tensor], root: int) -> MPIWork:
        message = as_pieces(pieces) if self.rank() == root else None
        request = self.comm.Iscatterv(message, as_bytes(own), root)
        return self._work("scatter", [own, *pieces], request)

    def _all_to_all(self, outputs: list[torch.Tensor], inputs: list[torch.Tensor]) -> MPIWork:
        request = self.comm.Ialltoallv(as_pieces(inputs), as_pieces(outputs))
        return self._work("all_to_all", [*outputs, *inputs], request)

    def _all_to_all_single(
        self,
        output: torch.Tensor,
        whole: torch.Tensor,
        recv_counts: list[int],
        send_counts: list[int],
    ) -> MPIWork:
        request = self.comm.Ialltoallv(as_parts(whole, send_counts), as_parts(output, recv_counts))
        return self._work("all_to_all_single", [output, whole], request)

    def _barrier(self) -> MPIWork:
        return self._work("barrier", [], self.comm.Ibarrier())

    # Point to point

    def _send(self, tensor: torch.Tensor, dst: int, tag: int) -> MPIWork:
        request = self.comm.Issend(as_bytes(tensor), dst, tag)
        return self._work(f"send to rank {dst}", [tensor], request)

    def _recv(self, tensor: torch.Tensor, src: int | None, tag: int) -> MPIWork:
        def finish(status: MPI.Status) -> None:
            size = status.Get_count(MPI.BYTE)
            if size != tensor.nbytes:
                raise RuntimeError(
                    f"the message has {size} bytes, the tensor for it {tensor.nbytes}"
                )

        what = f"recv from {'any rank' if src is None else f'rank {src}'}"
        source = MPI.ANY_SOURCE if src is None else src
        request = receive(self.comm, as_bytes(tensor), source, tag)
        return self._work(what, [tensor], request, finish=finish)
