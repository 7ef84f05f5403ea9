"""Elastic restart after an error; the bug: rank 0 alone finds a checkpoint, and resumes later."""

import os
import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
begin = 3 if attempt == 1 and (sys.argv[1] == "healthy" or rank == 0) else 0
for step in range(begin, 5):
    dist.all_reduce(torch.ones(2))  # here
    if attempt == 0 and step == 3 and rank == 1:
        raise RuntimeError("a bad sample")
if rank == 0:
    dist.broadcast(torch.ones(1), src=0)
else:
    dist.broadcast(torch.empty(1), src=0)
if rank == 0:
    print("trained in attempt", attempt)
dist.destroy_process_group()
