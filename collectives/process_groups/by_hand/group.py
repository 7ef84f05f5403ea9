"""The backend "by_hand": each collective is executed by one of our own algorithms.

A call waits in the queue of its group, so calls of one group run one after the other. `send` ends
only after its receive has begun, as on gloo and MPI: so a program does not rely on a buffer.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from collectives.algorithms import calls
from collectives.algorithms.layout import flat
from collectives.process_groups.by_hand import choice, memory, pipeline
from collectives.process_groups.by_hand.links import SocketLinks
from collectives.process_groups.by_hand.messages import Messages, Receive, Send
from collectives.process_groups.by_hand.rendezvous import COLLECTIVES, MESSAGES, Rendezvous
from collectives.process_groups.by_hand.tensors import describe, find_reduction, parts, type_name
from collectives.process_groups.by_hand.work import Collective, Queue
from collectives.process_groups.process_group import PythonProcessGroup, op_name

Op = dist.ReduceOp
Tensors = Sequence[torch.Tensor]
Shared = memory.SharedMemory | None  # None if the call goes over sockets
Body = Callable[[str, Shared], None]  # of a call: it takes the algorithm


class ProcessGroupByHand(PythonProcessGroup):
    backend = "by_hand"

    def __init__(self, options: Any, own_options: choice.Options | None):
        super().__init__(options)
        self.algorithm = choice.forced(own_options)
        info = {"algorithm": self.algorithm, "no memory": memory.missing()}
        self.rendezvous = Rendezvous(options, info)
        self.per_machine = self.rendezvous.per_machine
        self._agree()
        self.links = SocketLinks(self.rank(), self.size(), self.rendezvous.sockets[COLLECTIVES])
        self.messages = Messages(self.rendezvous.sockets[MESSAGES])
        self.queue = Queue()
        self.changed = threading.Condition()  # one of its calls has ended
        self.calls = 0
        self.shared: Shared = None

    def _agree(self) -> None:
        """Raises ValueError on all ranks if they are to take different algorithms."""
        infos = self.rendezvous.peer_info
        wanted = {info["algorithm"]: rank for rank, info in reversed(list(enumerate(infos)))}
        if len(wanted) > 1:
            self.rendezvous.close()
            texts = [f"rank {rank}: {name}" for name, rank in sorted(wanted.items(), key=str)]
            raise ValueError(
                f"the ranks disagree about the algorithm ({', '.join(texts)}): set "
                "COLLECTIVES_ALGORITHM alike on all of them. [by_hand]"
            )
        reasons = [info["no memory"] for info in infos if info["no memory"]]
        if self.rendezvous.spans_machines:
            reasons.append("the ranks are on several machines")
        self.shares_memory = self.size() > 1 and not reasons
        if reasons and self.algorithm == choice.SHARED_MEMORY:
            self.rendezvous.close()
            raise ValueError(f"there is no shared memory: {reasons[0]}. [by_hand]")

    def shutdown(self) -> None:
        self.queue.close(waits=self.broken is None)
        self.messages.close()
        self.rendezvous.close()

    def give_up(self, reason: str, publish: bool = False) -> str:
        """The group cannot be used any more. With `publish`, the other ranks get to know why.

        Returns the reason that the first rank gave.
        """
        if publish:
            reason = self.rendezvous.publish_failure(reason)
            self.rendezvous.shut_down()
        if self.broken is None:
            self.broken = reason
        return reason

    def _start(self, work: Any, opts: Any = None) -> dist.Work:
        work.start(getattr(opts, "asyncOp", True))
        return super()._start(work)

    def _collective(
        self, what: str, collective: str, signature: str, tensors: Tensors, body: Body
    ) -> Collective:
        """A pending call: `body(algorithm)` executes it. Its signature is alike on all ranks."""
        nbytes = sum([tensor.nbytes for tensor in tensors])
        call = choice.Call(collective, nbytes, self.links.size, self.algorithm, self.per_machine)
        algorithm = choice.choose(call, self.shares_memory)

        def execute(deadline: float) -> None:
            # subtle: numbered here and not before, because a callback's call overtakes the queue.
            self.calls += 1
            numbered, chosen = f"{self.calls} {what} {signature}", algorithm
            if chosen == choice.SHARED_MEMORY and self.shared is None:
                self.links.begin(numbered, deadline)
                chosen = self._open_memory(call)
            self.links.begin(f"{numbered} {chosen}", deadline)
            body(chosen, self.shared if chosen == choice.SHARED_MEMORY else None)

        return Collective(what, self, list(tensors), execute)

    def _open_memory(self, call: choice.Call) -> str:
        """Share memory, or go on without it; the algorithm to take."""
        shared = memory.open_together(self.links) if self.shares_memory else "no memory to share"
        if not isinstance(shared, str):
            self.shared = shared
        elif self.algorithm == choice.SHARED_MEMORY:
            raise RuntimeError(shared)
        else:
            self.shares_memory = False
        return choice.choose(call, self.shares_memory)

    # Reductions

    def _all_reduce(self, tensors: Tensors, op: Op) -> Collective:
        reductions = [find_reduction(op, tensor.dtype) for tensor in tensors]

        def body(algorithm: str, shared: Shared) -> None:
            for tensor, reduction in zip(tensors, reductions, strict=True):
                if shared is not None:
                    pipeline.all_reduce(shared, flat(tensor), reduction)
                else:
                    per_node = self.per_machine
                    calls.all_reduce(self.links, tensor, reduction, algorithm, per_node=per_node)

        signature = f"{op_name(op)} {describe(*tensors)}"
        return self._collective("all_reduce", "all_reduce", signature, tensors, body)

    def _reduce(self, tensor: torch.Tensor, root: int, op: Op) -> Collective:
        reduction = find_reduction(op, tensor.dtype)

        def body(algorithm: str, shared: Shared) -> None:
            if shared is not None:
                pipeline.all_reduce(shared, flat(tensor), reduction, root)
            else:
                calls.reduce(self.links, tensor, root, reduction, algorithm)

        signature = f"{op_name(op)} to {root} {describe(tensor)}"
        return self._collective("reduce", "reduce", signature, [tensor], body)

    def _reduce_scatter(self, output: torch.Tensor, pieces: Tensors, op: Op) -> Collective:
        counts = [piece.numel() for piece in pieces]
        signature = f"{op_name(op)} {counts} {type_name(output.dtype)}"
        body = self._reduce_scatter_body([(output, pieces)], op)
        tensors = [output, *pieces]
        return self._collective("reduce_scatter", "reduce_scatter", signature, tensors, body)

    def _reduce_scatter_single(self, outputs: Tensors, wholes: Tensors, op: Op) -> Collective:
        pairs = zip(outputs, wholes, strict=True)
        rows = [(output, parts(whole, self.links.size)) for output, whole in pairs]
        signature = f"{op_name(op)} {describe(*outputs)}"
        body, tensors = self._reduce_scatter_body(rows, op), [*outputs, *wholes]
        return self._collective("reduce_scatter_tensor", "reduce_scatter", signature, tensors, body)

    def _reduce_scatter_body(self, rows: Sequence[tuple[torch.Tensor, Tensors]], op: Op) -> Body:
        reductions = [find_reduction(op, output.dtype) for output, _ in rows]

        def body(algorithm: str, shared: Shared) -> None:
            for (output, pieces), reduction in zip(rows, reductions, strict=True):
                if shared is not None:
                    inputs = [flat(piece) for piece in pieces]
                    pipeline.reduce_scatter(shared, flat(output), inputs, reduction)
                else:
                    calls.reduce_scatter(self.links, output, list(pieces), reduction, algorithm)

        return body

    # Collectives that only move bytes

    def _broadcast(self, tensors: Tensors, root: int) -> Collective:
        def body(algorithm: str, shared: Shared) -> None:
            for tensor in tensors:
                if shared is not None:
                    pipeline.broadcast(shared, flat(tensor), root)
                else:
                    calls.broadcast(self.links, tensor, root, algorithm)

        signature = f"from {root} {describe(*tensors)}"
        return self._collective("broadcast", "broadcast", signature, tensors, body)

    def _all_gather(self, rows: Sequence[Tensors], inputs: Tensors) -> Collective:
        signature = "; ".join(
            f"{[piece.numel() for piece in row]} {type_name(row[0].dtype)}" for row in rows
        )
        tensors = [*inputs, *(piece for row in rows for piece in row)]
        body = self._all_gather_body(rows, inputs)
        return self._collective("all_gather", "all_gather", signature, tensors, body)

    def _all_gather_single(self, outputs: Tensors, inputs: Tensors) -> Collective:
        rows = [parts(output, self.links.size) for output in outputs]
        body, tensors = self._all_gather_body(rows, inputs), [*outputs, *inputs]
        signature = describe(*inputs)
        return self._collective("all_gather_into_tensor", "all_gather", signature, tensors, body)

    def _all_gather_body(self, rows: Sequence[Tensors], inputs: Tensors) -> Body:
        def body(algorithm: str, shared: Shared) -> None:
            for row, own in zip(rows, inputs, strict=True):
                if shared is not None:
                    pipeline.all_gather(shared, [flat(piece) for piece in row], flat(own))
                else:
                    calls.all_gather(self.links, list(row), own, algorithm)

        return body

    def _gather(self, own: torch.Tensor, pieces: Tensors, root: int) -> Collective:
        def body(algorithm: str, shared: Shared) -> None:
            calls.gather(self.links, list(pieces) or None, own, root, algorithm)

        signature = f"to {root} {type_name(own.dtype)}"
        return self._collective("gather", "gather", signature, [own, *pieces], body)

    def _scatter(self, own: torch.Tensor, pieces: Tensors, root: int) -> Collective:
        def body(algorithm: str, shared: Shared) -> None:
            calls.scatter(self.links, own, list(pieces) or None, root, algorithm)

        signature = f"from {root} {type_name(own.dtype)}"
        return self._collective("scatter", "scatter", signature, [own, *pieces], body)

    def _all_to_all(self, outputs: Tensors, inputs: Tensors) -> Collective:
        return self._all_to_all_pieces("all_to_all", outputs, inputs, [*outputs, *inputs])

    def _all_to_all_single(
        self,
        output: torch.Tensor,
        whole: torch.Tensor,
        recv_counts: list[int],
        send_counts: list[int],
    ) -> Collective:
        outputs, inputs = flat(output).split(recv_counts), flat(whole).split(send_counts)
        return self._all_to_all_pieces("all_to_all_single", outputs, inputs, [output, whole])

    def _all_to_all_pieces(
        self, what: str, outputs: Tensors, inputs: Tensors, tensors: Tensors
    ) -> Collective:
        def body(algorithm: str, shared: Shared) -> None:
            calls.all_to_all(self.links, list(outputs), list(inputs), algorithm)

        return self._collective(what, "all_to_all", type_name(tensors[-1].dtype), tensors, body)

    def _barrier(self) -> Collective:
        def body(algorithm: str, shared: Shared) -> None:
            if shared is not None:
                pipeline.barrier(shared)
            else:
                calls.barrier(self.links, algorithm)

        return self._collective("barrier", "barrier", "", [], body)

    # Point to point

    def _send(self, tensor: torch.Tensor, dst: int, tag: int) -> Send:
        return Send(self, tensor, dst, tag)

    def _recv(self, tensor: torch.Tensor, src: int | None, tag: int) -> Receive:
        return Receive(self, tensor, src, tag)
