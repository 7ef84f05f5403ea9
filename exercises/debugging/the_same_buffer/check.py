"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator
from typing import Any

import torch

from collectives.course.practice.data import moved
from collectives.course.practice.exercise import ExerciseCase, hints
from collectives.course.practice.process_group import SENT


class _Tensors(list):
    """Refuses to give another tensor to a program that has waited for a message too early."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return (self[number] for number in range(len(self)))

    def __getitem__(self, number: Any) -> Any:
        if len(SENT.started) < SENT.messages < len(self):
            SENT.refuse(f"it waits for message {SENT.messages} before it sends the next one")
        return super().__getitem__(number)


@hints(
    "From when on may you write into a tensor again that you have passed to isend?",
    "Give each message a tensor of its own, or wait before you write again.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    for call in range(3):
        texts = [moved(k, 1000, call).long() for k in range((3, 4, 40)[call])]
        SENT.reset()  # what is shown of a case reads the tensors, too
        yield ExerciseCase(
            f"run {call + 1}",
            (_Tensors(texts) if rank == 0 else len(texts),),
            texts if rank < 2 else [],
        )
