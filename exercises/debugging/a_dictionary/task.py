"""A dictionary

Every rank has named numbers, and needs each name's sum over all ranks. Return the pairs in the
order in which they were given. This version adds the hits of one rank to the words of another. Fix
it.

    rank  numbers                        returned
    0     [("hits", 1), ("words", 2)]    [("hits", 11), ("words", 22)]
    1     [("words", 20), ("hits", 10)]  [("words", 22), ("hits", 11)]

You may call all_reduce, and no other collective.
"""

import torch
import torch.distributed as dist


def add_up(numbers: list[tuple[str, torch.Tensor]]) -> list[tuple[str, torch.Tensor]]:
    totals = {name: number.clone() for name, number in numbers}
    for total in totals.values():
        dist.all_reduce(total)
    return list(totals.items())
