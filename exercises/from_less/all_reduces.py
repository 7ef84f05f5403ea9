"""Calls of an all_reduce that is cut into n pieces."""

from collections.abc import Iterator
from typing import Any

import torch

from collectives.course.practice.data import added, elements
from collectives.course.practice.exercise import ExerciseCase


def all_reduces(rank: int, n: int, **limits: Any) -> Iterator[ExerciseCase]:
    # It is cut into n pieces: the telling lengths first.
    lengths = (n, 2 * n, n + 1, n - 1, 1000, 0) if n <= 3 else (n, 2 * n, n + 1)
    for call, length in enumerate(dict.fromkeys(lengths)):
        parts = [added(r, length, call) for r in range(n)]
        yield ExerciseCase(
            f"{elements(length)}, run {call + 1}",
            (parts[rank],),
            after={0: torch.stack(parts).sum(0)},
            **limits,
        )


# Wrong answers to each of these exercises: wrong.py adds its own.
WRONG_ALL_REDUCES = {
    "it adds and sends in float32": {
        "kind": "numbers too large for float32",
        "around": """\
def all_reduce(x):
    short = x.float()
    right(short)
    x.copy_(short)
""",
        "says": "the result is wrong.",
    },
    "it sends whole numbers": {
        "kind": "fractions",
        "around": """\
def all_reduce(x):
    whole = x.nan_to_num().long()
    right(whole)
    x.copy_(whole)
""",
        "says": "the result is wrong.",
    },
    "it keeps the first result": {
        "kind": "a second call",
        "around": """\
KEPT = {}


def all_reduce(x):
    if 0 not in KEPT:
        right(x)
        KEPT[0] = x.clone()
    x.copy_(KEPT[0][: len(x)])
""",
        "says": "raised RuntimeError: The size of tensor a",
    },
}
