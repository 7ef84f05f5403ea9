"""Commit what all have

Each rank is an engine, and has received new weights into spares. `came` says which of its tensors
have really come. If all tensors have come on all ranks, copy the spares into the weights on every
rank, and return True. Otherwise keep the old weights on every rank, and return False.

    rank  weights     spares      came            weights afterwards  returned
    0     [[1], [2]]  [[5], [6]]  [False, False]  [[1], [2]]          False
    1     [[1], [2]]  [[5], [6]]  [True, True]    [[1], [2]]          False

You may call all_reduce, and no other collective.
"""

import torch
import torch.distributed as dist


def commit(weights: list[torch.Tensor], spares: list[torch.Tensor], came: list[bool]) -> bool:
    raise NotImplementedError("TODO: about six lines")
