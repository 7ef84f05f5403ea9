"""What a sum loses when every partial sum is rounded: along a chain, and up a tree."""

from collections.abc import Callable

import numpy as np
import torch

from collectives.backends.algorithms import binomial_tree, chain, recursive_doubling
from collectives.backends.algorithms.schedule import NOBODY, Schedule, steps

# A ring adds each piece along a chain of all ranks, which begins at another rank for each piece.
SCHEDULES = {
    "chain, ring": lambda rank, n: chain.reduce(rank, n, pieces=1),
    "binomial_tree": binomial_tree.reduce,
    "recursive_doubling": recursive_doubling.all_reduce,
}


def relative_error(name: str, n: int, dtype: torch.dtype, draw: Callable = torch.randn) -> float:
    """The norm of the sums' errors over that of the sums: 1000 sums of n random numbers each."""
    random = torch.Generator().manual_seed(0)
    terms = draw(n, 1000, dtype=torch.float64, generator=random).to(dtype)
    exact = terms.double().sum(0)
    found = reduced(SCHEDULES[name](np.arange(n), n), terms)[0].double()
    return float((found - exact).norm() / exact.norm())


def reduced(schedule: Schedule, terms: torch.Tensor) -> torch.Tensor:
    """What each rank holds in the end: `terms` has a row for each rank, all of it one piece."""
    memory = terms.clone()
    for step in steps(schedule):
        source = np.broadcast_to(step.source, len(terms))
        receivers = np.flatnonzero(source != NOBODY)
        arrived = memory[source[receivers]]
        memory[receivers] = arrived + memory[receivers] if step.reduce else arrived
    return memory
