"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

import torch
import torch.distributed as dist

from collectives.course.practice.data import added
from collectives.course.practice.exercise import ExerciseCase, hints
from collectives.course.practice.process_group import SENT

_TOO_EARLY = "it waits for its {} sum before it asks for the {} tensor: nothing overlaps"


class _Backward:
    """Gives one gradient after another. Rank 1 has its first when rank 0 asks for its second."""

    def __init__(self, gradients: list[torch.Tensor], rank: int, n: int, call: int):
        self.gradients, self.waits, self.tells = gradients, rank == 1, rank == 0 and n > 1
        self.key = f"backward {call}"

    def __repr__(self) -> str:
        return ", ".join(str(gradient.tolist()) for gradient in self.gradients)

    def __iter__(self) -> Iterator[torch.Tensor]:
        store = dist.distributed_c10d._get_default_store()
        for number, gradient in enumerate(self.gradients):
            if SENT.calls < number:
                started = f"it starts the all_reduce of tensor {number}"
                SENT.refuse(f"it asks for tensor {number + 1} before {started}")
            if self.tells and number == 1:
                store.set(self.key, "")
            if self.waits and number == 0:
                store.wait([self.key])
            which = ("first", "second") if number == 0 else ("latest", "next")
            is_last = number == len(self.gradients) - 1
            SENT.asked = SENT.made
            SENT.too_early = None if is_last else _TOO_EARLY.format(*which)
            yield gradient.clone()


@hints(
    "With `async_op=True` all_reduce returns at once, and what it returns is a `Work`.",
    "Keep the tensor and its `Work`, and continue with the next tensor.",
    "Wait for each `Work` after the loop, before anybody reads the sums.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    for call in range(3):
        by_rank = [
            [(k + 1) * added(r, 2, call) for k in range(3 if call < 2 else 5)] for r in range(n)
        ]
        sums = [torch.stack(same).sum(0) for same in zip(*by_rank, strict=True)]
        yield ExerciseCase(f"run {call + 1}", (_Backward(by_rank[rank], rank, n, call),), sums)
