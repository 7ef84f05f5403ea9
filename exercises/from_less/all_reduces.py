"""Calls of an all_reduce that is cut into n pieces."""

from collections.abc import Iterator
from typing import Any

import torch

from collectives.course.practice.data import added, elements
from collectives.course.practice.exercise import Case


def all_reduces(rank: int, n: int, **limits: Any) -> Iterator[Case]:
    # It is cut into n pieces: the telling lengths first.
    for call, length in enumerate(dict.fromkeys((n, 2 * n, n + 1, n - 1, 1, 0, 1000))):
        parts = [added(r, length, call) for r in range(n)]
        yield Case(
            f"{elements(length)}, run {call + 1}",
            (parts[rank],),
            after={0: torch.stack(parts).sum(0)},
            **limits,
        )
