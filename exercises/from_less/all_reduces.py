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
