"""The last micro-batches

A program adds up the gradients of `every` micro-batches, then takes a step. This version loses the
micro-batches that are left over at the end. Return the numbers of the micro-batches, from 0, after
which there is a step. Fix it.

    micro_batches 7, every 3
    returned [2, 5, 6]
"""

import torch
import torch.distributed as dist


def steps_after(micro_batches: int, every: int) -> list[int]:
    return [i for i in range(micro_batches) if (i + 1) % every == 0]
