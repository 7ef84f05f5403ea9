"""One after another

Each rank may speak once, in rank order: rank 0, then rank 1, and so on. `speak()` returns how many
ranks have spoken so far, this one included. Return that number.

    rank  returned
    0     1
    1     2
    2     3

You may call barrier, and no other collective.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist


def in_turn(speak: Callable[[], int]) -> int:
    raise NotImplementedError("TODO: about five lines")
