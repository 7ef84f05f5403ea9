"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator

import torch

from collectives.course.practice.exercise import ExerciseCase, hints


@hints(
    "In round k (distance 1, 2, 4, ...) send to rank + distance, receive from rank - distance.",
    "Pass on all marks that you have. `torch.maximum` joins them with those you receive.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    for call in range(3):
        marks = torch.zeros(n)
        marks[rank] = 1.0
        messages = (n - 1).bit_length()
        yield ExerciseCase(
            f"run {call + 1}",
            (marks,),
            after={0: torch.ones(n)},
            messages=messages,
            least_messages=min(1, n - 1),
            together=call == 2,
            says={
                "least_messages": "only when it knows that every rank has called",
                "together": "only when it knows that every rank has called",
                "messages": "at most log2(n) messages, rounded up",
            },
        )
