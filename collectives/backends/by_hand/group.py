"""The backend "by_hand": each collective is executed by one of our own algorithms.

A call waits in the queue of its group, so calls of one group run one after the other. `send` ends
only after its receive has begun, as on gloo and MPI: so a program does not rely on a buffer.
"""

import threading

from collectives.backends.algorithms import calls
from collectives.backends.by_hand import choice, memory, pipeline
from collectives.backends.by_hand.links import SocketLinks
from collectives.backends.by_hand.meeting import COLLECTIVES, MESSAGES, Meeting
from collectives.backends.by_hand.messages import Messages, Receive, Send
from collectives.backends.by_hand.tensors import all_kinds, flat, parts, reduction, type_name
from collectives.backends.by_hand.work import Collective, Queue
from collectives.backends.process_group import PythonProcessGroup, op_name


class ProcessGroupByHand(PythonProcessGroup):
    backend = "by_hand"

    def __init__(self, options, own_options: choice.Options | None):
        super().__init__(options)
        self.algorithm = choice.forced(own_options)
        card = {"algorithm": self.algorithm, "no memory": memory.missing()}
        self.meeting = Meeting(options, card)
        self.per_machine = self.meeting.per_machine
        self._agree()
        self.links = SocketLinks(self.rank(), self.size(), self.meeting.sockets[COLLECTIVES])
        self.messages = Messages(self.meeting.sockets[MESSAGES])
        self.queue = Queue()
        self.changed = threading.Condition()  # one of its calls has ended
        self.calls = 0
        self.shared: memory.SharedMemory | None = None

    def _agree(self) -> None:
        """Raises ValueError on all ranks if they are to take different algorithms."""
        cards = self.meeting.cards
        wanted = {card["algorithm"]: rank for rank, card in reversed(list(enumerate(cards)))}
        if len(wanted) > 1:
            self.meeting.close()
            texts = [f"rank {rank}: {name}" for name, rank in sorted(wanted.items(), key=str)]
            raise ValueError(
                f"the ranks disagree about the algorithm ({', '.join(texts)}): set "
                "COLLECTIVES_ALGORITHM alike on all of them. [by_hand]"
            )
        reasons = [card["no memory"] for card in cards if card["no memory"]]
        if self.meeting.spans_machines:
            reasons.append("the ranks are on several machines")
        self.shares_memory = self.size() > 1 and not reasons
        if reasons and self.algorithm == choice.SHARED_MEMORY:
            self.meeting.close()
            raise ValueError(f"there is no shared memory: {reasons[0]}. [by_hand]")

    def shutdown(self) -> None:
        self.queue.close(waits=self.broken is None)
        self.messages.close()
        self.meeting.close()

    def give_up(self, reason: str, tell: bool = False) -> str:
        """The group cannot be used any more. With `tell`, the other ranks get to know.

        Returns the reason that the first rank gave.
        """
        if tell:
            reason = self.meeting.tell_why(reason)
            self.meeting.shut_down()
        if self.broken is None:
            self.broken = reason
        return reason

    def _start(self, work, opts=None):
        work.start(getattr(opts, "asyncOp", True))
        return super()._start(work)

    def _collective(self, what: str, collective: str, words: str, tensors, run) -> Collective:
        """A pending call. `run(algorithm)` makes it; `words` must be alike on all ranks."""
        nbytes = sum([tensor.nbytes for tensor in tensors])
        call = choice.Call(collective, nbytes, self.size(), self.algorithm, self.per_machine)
        algorithm = choice.choose(call, self.shares_memory)
        self.calls += 1
        words = f"{self.calls} {what} {words}"

        def make(deadline: float) -> None:
            chosen = algorithm
            if chosen == choice.SHARED_MEMORY and self.shared is None:
                self.links.begin(words, deadline)
                chosen = self._open_memory(call)
            self.links.begin(f"{words} {chosen}", deadline)
            run(chosen)

        return Collective(what, self, tensors, make)

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

    def _all_reduce(self, tensors, op):
        kinds = [reduction(op, tensor.dtype) for tensor in tensors]

        def run(algorithm):
            for tensor, how in zip(tensors, kinds, strict=True):
                if algorithm == choice.SHARED_MEMORY:
                    pipeline.all_reduce(self.shared, flat(tensor), how)
                else:
                    per_node = self.per_machine
                    calls.all_reduce(self.links, tensor, op, algorithm, per_node=per_node)

        words = f"{op_name(op)} {all_kinds(tensors)}"
        return self._collective("all_reduce", "all_reduce", words, tensors, run)

    def _reduce(self, tensor, root, op):
        how = reduction(op, tensor.dtype)

        def run(algorithm):
            if algorithm == choice.SHARED_MEMORY:
                pipeline.all_reduce(self.shared, flat(tensor), how, root)
            else:
                calls.reduce(self.links, tensor, root, op, algorithm)

        words = f"{op_name(op)} to {root} {all_kinds([tensor])}"
        return self._collective("reduce", "reduce", words, [tensor], run)

    def _reduce_scatter(self, output, pieces, op):
        words = f"{op_name(op)} {[piece.numel() for piece in pieces]} {type_name(output)}"
        run = self._scatter_sums([(output, pieces)], op)
        return self._collective("reduce_scatter", "reduce_scatter", words, [output, *pieces], run)

    def _reduce_scatter_single(self, outputs, wholes, op):
        rows = [
            (output, parts(whole, self.size()))
            for output, whole in zip(outputs, wholes, strict=True)
        ]
        words = f"{op_name(op)} {all_kinds(outputs)}"
        run, tensors = self._scatter_sums(rows, op), [*outputs, *wholes]
        return self._collective("reduce_scatter_tensor", "reduce_scatter", words, tensors, run)

    def _scatter_sums(self, rows, op):
        kinds = [reduction(op, output.dtype) for output, _ in rows]

        def run(algorithm):
            for (output, pieces), how in zip(rows, kinds, strict=True):
                if algorithm == choice.SHARED_MEMORY:
                    inputs = [flat(piece) for piece in pieces]
                    pipeline.reduce_scatter(self.shared, flat(output), inputs, how)
                else:
                    calls.reduce_scatter(self.links, output, pieces, op, algorithm)

        return run

    # Collectives that only move bytes

    def _broadcast(self, tensors, root):
        def run(algorithm):
            for tensor in tensors:
                if algorithm == choice.SHARED_MEMORY:
                    pipeline.broadcast(self.shared, flat(tensor), root)
                else:
                    calls.broadcast(self.links, tensor, root, algorithm)

        words = f"from {root} {all_kinds(tensors)}"
        return self._collective("broadcast", "broadcast", words, tensors, run)

    def _all_gather(self, rows, inputs):
        words = "; ".join(f"{[piece.numel() for piece in row]} {type_name(row[0])}" for row in rows)
        run, tensors = self._gather_all(rows, inputs), [*inputs, *(p for row in rows for p in row)]
        return self._collective("all_gather", "all_gather", words, tensors, run)

    def _all_gather_single(self, outputs, inputs):
        rows = [parts(output, self.size()) for output in outputs]
        run, tensors = self._gather_all(rows, inputs), [*outputs, *inputs]
        return self._collective(
            "all_gather_into_tensor", "all_gather", all_kinds(inputs), tensors, run
        )

    def _gather_all(self, rows, inputs):
        def run(algorithm):
            for row, own in zip(rows, inputs, strict=True):
                if algorithm == choice.SHARED_MEMORY:
                    pipeline.all_gather(self.shared, [flat(piece) for piece in row], flat(own))
                else:
                    calls.all_gather(self.links, list(row), own, algorithm)

        return run

    def _gather(self, own, pieces, root):
        def run(algorithm):
            calls.gather(self.links, pieces or None, own, root, algorithm)

        words = f"to {root} {type_name(own)}"
        return self._collective("gather", "gather", words, [own, *pieces], run)

    def _scatter(self, own, pieces, root):
        def run(algorithm):
            calls.scatter(self.links, own, pieces or None, root, algorithm)

        words = f"from {root} {type_name(own)}"
        return self._collective("scatter", "scatter", words, [own, *pieces], run)

    def _all_to_all(self, outputs, inputs):
        def run(algorithm):
            calls.all_to_all(self.links, outputs, inputs, algorithm)

        words = type_name(inputs[0])
        return self._collective("all_to_all", "all_to_all", words, [*outputs, *inputs], run)

    def _all_to_all_single(self, output, whole, come, go):
        outputs, inputs = list(flat(output).split(come)), list(flat(whole).split(go))

        def run(algorithm):
            calls.all_to_all(self.links, outputs, inputs, algorithm)

        words = type_name(whole)
        return self._collective("all_to_all_single", "all_to_all", words, [output, whole], run)

    def _barrier(self):
        def run(algorithm):
            if algorithm == choice.SHARED_MEMORY:
                pipeline.barrier(self.shared)
            else:
                calls.barrier(self.links, algorithm)

        return self._collective("barrier", "barrier", "", [], run)

    # Point to point

    def _send(self, tensor, dst, tag):
        return Send(self, tensor, dst, tag)

    def _recv(self, tensor, src, tag):
        return Receive(self, tensor, src, tag)
