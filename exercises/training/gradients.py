"""Gradients of three parameters, and their averages."""

import torch

from collectives.course.practice.data import moved


def gradients(rank: int, call: int) -> list[torch.Tensor]:
    """Of three parameters, in float64."""
    made = [moved(rank, length, call).double() * (8 if call < 2 else 1) for length in (2, 3, 1)]
    if call == 1 and rank == 0:
        made[1].zero_()  # one rank's alone
    return made


def averaged(n: int, call: int) -> list[torch.Tensor]:
    by_rank = [gradients(rank, call) for rank in range(n)]
    return [torch.stack(same).sum(0) / n for same in zip(*by_rank, strict=True)]


# Wrong answers to each of these exercises: wrong.py adds its own.
WRONG_GRADIENTS = {
    "whole numbers": {
        "kind": "fractions",
        "around": """\
def average_gradients(gradients):
    whole = [gradient.long().double() for gradient in gradients]
    right(whole)
    for gradient, new in zip(gradients, whole, strict=True):
        gradient.copy_(new)
""",
        "says": "the result is wrong.",
    },
    "it keeps the first result": {
        "kind": "a second call",
        "around": """\
KEPT = []


def average_gradients(gradients):
    if not KEPT:
        right(gradients)
        KEPT.extend(gradient.clone() for gradient in gradients)
    for gradient, old in zip(gradients, KEPT, strict=True):
        gradient.copy_(old)
""",
        "says": "the result is wrong.",
    },
}
