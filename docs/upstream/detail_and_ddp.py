"""Under TORCH_DISTRIBUTED_DEBUG=DETAIL, DDP on the CPU kills the process.

Expected: a model, as without DETAIL. Got: SIGSEGV.

torchrun: 2
bug: 2.13.0, 2.14.1
shows: Signal 11 (SIGSEGV)
thread: none found (https://github.com/pytorch/pytorch/issues/148976 has a barrier instead of DDP)
"""

import os

import torch
import torch.distributed as dist

os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"
dist.set_debug_level_from_env()
dist.init_process_group("gloo")
torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
dist.destroy_process_group()
