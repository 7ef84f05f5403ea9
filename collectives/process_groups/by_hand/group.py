"""The backend "by_hand": each collective is executed by one of our own algorithms.

A call waits in the queue of its group, so calls of one group run one after the other. `send` ends
only after its receive has begun, as on gloo and MPI: so a program does not rely on a buffer.
"""

import functools
import threading
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from collectives.algorithms import calls
from collectives.algorithms.reductions import op_name, reduction
from collectives.algorithms.tensors import flat
from collectives.process_groups.by_hand import choice, memory, pipeline
from collectives.process_groups.by_hand.links import SocketLinks
from collectives.process_groups.by_hand.messages import Receive, Send, SocketMessages
from collectives.process_groups.by_hand.rendezvous import COLLECTIVES, MESSAGES, Rendezvous
from collectives.process_groups.by_hand.work import Collective, Queue
from collectives.process_groups.process_group import PythonProcessGroup

Op = dist.ReduceOp
Tensors = Sequence[torch.Tensor]


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
        self.messages = SocketMessages(self.rendezvous.sockets[MESSAGES])
        self.queue = Queue()
        self.changed = threading.Condition()  # one of its calls has ended
        self.calls = 0
        self.shared: memory.SharedMemory | None = None

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
        self,
        collective: str,
        signature: str,
        tensors: Sequence[torch.Tensor],
        each: Sequence[tuple[Any, ...]],
        name: str | None = None,
    ) -> Collective:
        """A pending call: the collective with each of these arguments, one after the other.

        The signature is alike on all ranks. `name` is torch's, if that is another one.
        """
        what = name or collective
        nbytes = sum([tensor.nbytes for tensor in tensors])
        call = choice.ByHandCall(
            collective, nbytes, self.links.size, self.algorithm, self.per_machine
        )
        algorithm = choice.choose(call, self.shares_memory)

        def execute(deadline: float) -> None:
            # subtle: numbered here and not before, because a callback's call overtakes the queue.
            self.calls += 1
            numbered, chosen = f"{self.calls} {what} {signature}", algorithm
            if chosen == choice.SHARED_MEMORY and self.shared is None:
                self.links.begin(numbered, deadline)
                chosen = self._open_memory(call)
            self.links.begin(f"{numbered} {chosen}", deadline)
            for arguments in each:
                if chosen == choice.SHARED_MEMORY:
                    getattr(pipeline, collective)(self.shared, *arguments)
                else:
                    more = {"per_node": self.per_machine} if collective == "all_reduce" else {}
                    getattr(calls, collective)(self.links, *arguments, chosen, **more)

        return Collective(what, self, list(tensors), execute)

    def _open_memory(self, call: choice.ByHandCall) -> str:
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
        each = [(tensor, reduction(op, tensor.dtype)) for tensor in tensors]
        signature = f"{op_name(op)} {_described(*tensors)}"
        return self._collective("all_reduce", signature, tensors, each)

    def _reduce(self, tensor: torch.Tensor, root: int, op: Op) -> Collective:
        each = [(tensor, root, reduction(op, tensor.dtype))]
        signature = f"{op_name(op)} to {root} {_described(tensor)}"
        return self._collective("reduce", signature, [tensor], each)

    def _reduce_scatter(self, output: torch.Tensor, pieces: Tensors, op: Op) -> Collective:
        each = [(output, pieces, reduction(op, output.dtype))]
        counts = [piece.numel() for piece in pieces]
        signature = f"{op_name(op)} {counts} {_type_name(output.dtype)}"
        return self._collective("reduce_scatter", signature, [output, *pieces], each)

    def _reduce_scatter_single(self, outputs: Tensors, wholes: Tensors, op: Op) -> Collective:
        each = [
            (output, self._parts(whole), reduction(op, output.dtype))
            for output, whole in zip(outputs, wholes, strict=True)
        ]
        signature, tensors = f"{op_name(op)} {_described(*outputs)}", [*outputs, *wholes]
        return self._collective(
            "reduce_scatter", signature, tensors, each, name="reduce_scatter_single"
        )

    # Collectives that only move bytes

    def _broadcast(self, tensors: Tensors, root: int) -> Collective:
        signature = f"from {root} {_described(*tensors)}"
        return self._collective("broadcast", signature, tensors, [(x, root) for x in tensors])

    def _all_gather(self, rows: Sequence[Tensors], inputs: Tensors) -> Collective:
        signature = "; ".join(
            f"{[piece.numel() for piece in row]} {_type_name(row[0].dtype)}" for row in rows
        )
        tensors = [*inputs, *(piece for row in rows for piece in row)]
        each = list(zip(rows, inputs, strict=True))
        return self._collective("all_gather", signature, tensors, each)

    def _all_gather_single(self, outputs: Tensors, inputs: Tensors) -> Collective:
        each = list(zip(map(self._parts, outputs), inputs, strict=True))
        signature, tensors = _described(*inputs), [*outputs, *inputs]
        return self._collective("all_gather", signature, tensors, each, name="all_gather_single")

    def _gather(self, own: torch.Tensor, pieces: Tensors, root: int) -> Collective:
        signature = f"to {root} {_type_name(own.dtype)}"
        each = [(pieces or None, own, root)]
        return self._collective("gather", signature, [own, *pieces], each)

    def _scatter(self, own: torch.Tensor, pieces: Tensors, root: int) -> Collective:
        signature = f"from {root} {_type_name(own.dtype)}"
        each = [(own, pieces or None, root)]
        return self._collective("scatter", signature, [own, *pieces], each)

    def _all_to_all(self, outputs: Tensors, inputs: Tensors) -> Collective:
        signature = _type_name(inputs[0].dtype)
        return self._collective("all_to_all", signature, [*outputs, *inputs], [(outputs, inputs)])

    def _all_to_all_single(
        self,
        output: torch.Tensor,
        whole: torch.Tensor,
        recv_counts: list[int],
        send_counts: list[int],
    ) -> Collective:
        each = [(flat(output).split(recv_counts), flat(whole).split(send_counts))]
        signature, tensors = _type_name(whole.dtype), [output, whole]
        return self._collective("all_to_all", signature, tensors, each, name="all_to_all_single")

    def _barrier(self) -> Collective:
        return self._collective("barrier", "", [], [()])

    def _parts(self, whole: torch.Tensor) -> Tensors:
        """The part for each rank, in the tensor's own memory."""
        return flat(whole).tensor_split(self.links.size)

    # Point to point

    def _send(self, tensor: torch.Tensor, dst: int, tag: int) -> Send:
        return Send(self, tensor, dst, tag)

    def _recv(self, tensor: torch.Tensor, src: int | None, tag: int) -> Receive:
        return Receive(self, tensor, src, tag)


@functools.cache
def _type_name(dtype: torch.dtype) -> str:
    """As in "float32"."""
    return str(dtype).removeprefix("torch.")


def _described(*tensors: torch.Tensor) -> str:
    """How a call describes its tensors to other ranks: as in "float32 x 4, int64 x 2"."""
    return ", ".join([_described_alike(tensor.dtype, tensor.numel()) for tensor in tensors])


@functools.lru_cache(1024)
def _described_alike(dtype: torch.dtype, numel: int) -> str:
    return f"{_type_name(dtype)} x {numel}"
