"""One call per step

The optimizer takes a step after `every` micro-batches, and one after the last, even if fewer are
left. A step needs the sum of the gradients since the last step, over all ranks. Return these sums,
with one all_reduce per step, and leave `gradients` as it is.

    every 2
    rank  gradients           returned
    0     [[1], [2], [3]]     [[33], [33]]
    1     [[10], [20], [30]]  [[33], [33]]

You may call all_reduce, and no other collective.
"""

import torch
import torch.distributed as dist


def sums_of_steps(gradients: list[torch.Tensor], every: int) -> list[torch.Tensor]:
    raise NotImplementedError("TODO: about six lines")
