"""What the function must do, and in which cases it is tried."""

import time
from collections.abc import Iterator

import torch.distributed as dist

from collectives.course.practice.exercise import ExerciseCase, hints
from collectives.course.practice.process_group import SENT


class _Speak:
    """A rank speaks when another one has spoken meanwhile, which is wrong, or has not for long."""

    def __init__(self, rank: int, n: int, call: int):
        self.seconds, self.key, self.has_spoken = 0.05 * (n - 1 - rank), f"spoken {call}", False
        self.rank = rank

    def __repr__(self) -> str:
        return "speak"

    def __call__(self) -> int:
        self.has_spoken = True
        if SENT.calls < self.rank:
            SENT.refuse("it speaks, and no barrier has told it that all before it have spoken")
        store, until = dist.distributed_c10d._get_default_store(), time.monotonic() + self.seconds
        before = store.add(self.key, 0)
        while store.add(self.key, 0) == before and time.monotonic() < until:
            time.sleep(0.001)
        return store.add(self.key, 1)


@hints(
    "How can rank 1 know that rank 0 has spoken, if it may only call barrier?",
    "Make n barriers, and let one rank speak between two of them. Every rank calls all n.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    for call in range(3):
        speak = _Speak(rank, n, call)
        yield ExerciseCase(
            f"run {call + 1}",
            (speak,),
            rank + 1,
            least_calls=n - 1,
            says={"least_calls": "in rank order: rank 0, then rank 1, and so on"},
        )
        if not speak.has_spoken:
            SENT.misuse = "it has not called `speak`"
