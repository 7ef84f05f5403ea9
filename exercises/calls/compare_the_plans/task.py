"""Compare the plans

A trainer will send its weights, so first all ranks find out whether they mean the same tensors: the
names, shapes and dtypes, in the same order. Return True on every rank if all ranks do, and False on
every rank otherwise. The values do not count.

    rank  weights                    returned
    0     {"a": [1, 2], "b": [3]}    False
    1     {"a": [1, 2], "c": [3]}    False

You may call all_gather and all_gather_single, and no other collective, once in all. A hash has one
length, however long the plan is: `hashlib.sha256(text.encode()).digest()` has 32 bytes.
"""

import hashlib

import torch
import torch.distributed as dist


def same_plan(weights: dict[str, torch.Tensor]) -> bool:
    raise NotImplementedError("TODO: about six lines")
