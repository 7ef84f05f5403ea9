"""TORCH_DISTRIBUTED_DEBUG=DETAIL compares neither the reduction nor the root of a collective.

Expected: "Detected mismatch between collectives on ranks". Got: wrong numbers, without an error.

torchrun: 2
bug: 2.13.0, 2.14.1
shows: AssertionError: tensor([1.])
thread: none found
"""

import os

import torch
import torch.distributed as dist

os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
dist.set_debug_level_from_env()
dist.init_process_group("gloo")
x = torch.ones(1)
try:
    dist.all_reduce(x, dist.ReduceOp.SUM if dist.get_rank() else dist.ReduceOp.MAX)
    noticed = False
except RuntimeError as error:
    noticed = "Detected mismatch" in str(error)
dist.destroy_process_group()
assert noticed, x
