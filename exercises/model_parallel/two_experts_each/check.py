"""What the function must do, and in which cases it is tried."""

from collections.abc import Iterator
from functools import partial

import torch
from known_faults import why

from collectives.course.practice.data import moved
from collectives.course.practice.exercise import ExerciseCase, hints


class _Expert:
    def __init__(self, rank: int):
        self.number = 10 * (rank + 1)

    def __repr__(self) -> str:
        return f"adds {self.number}"

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        return tokens + self.number


@hints(
    "A token with two experts is two tokens with one expert each: `tokens.repeat_interleave(2)` "
    "has the order of `choice.flatten()`.",
    "`order = choice.flatten().argsort()` sorts them by rank. On the way back, "
    "`result[order] = answers` undoes it.",
    "Then `.view(-1, 2)` has the two answers of a token in a row.",
)
def cases(rank: int, n: int) -> Iterator[ExerciseCase]:
    for call, length in enumerate((3, 3, 4, 1000, 5)):
        length = 0 if call == 4 and rank == 0 else length
        tokens, number = moved(rank, length, call).double(), torch.arange(length)
        first = (number + rank + 1) % n  # its right neighbour, and the others by turns
        second = (first + 1 + number % max(n - 1, 1)) % n
        if call == 2:
            first[:], second[:] = 0, n - 1
        choice = torch.stack([first, second], dim=1)
        share = (1 + number % 4) / 8.0
        weight = torch.stack([1 - share, share / (1 if call == 0 else 2)], dim=1).double()
        answers = tokens[:, None] + 10 * (choice + 1)
        known = {
            "only the first expert of each token counts": (weight * answers)[:, 0],
            "the weights are left out: it is a sum of the answers": answers.sum(1),
            "the weights are left out: it is a mean of the answers": answers.mean(1),
            "the two weights have changed places": (weight.flip(1) * answers).sum(1),
        }
        kind = "rank 0 has none" if call == 4 else f"{length} tokens"
        yield ExerciseCase(
            f"{kind}, run {call + 1}",
            (tokens, choice, weight, _Expert(rank)),
            (weight * answers).sum(1),
            explain=partial(why, known),
        )
