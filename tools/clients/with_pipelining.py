"""Pipelining; the bug: the first stage alone runs one step more."""

import sys

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
stage = PipelineStage(torch.nn.Linear(8, 8), rank, 2, torch.device("cpu"))
schedule = Schedule1F1B(stage, 4, loss_fn=torch.nn.functional.mse_loss)
for _ in range(3):
    if rank == 0:
        schedule.step(torch.randn(8, 8))
    else:
        schedule.step(target=torch.randn(8, 8))
if sys.argv[1] == "bug" and rank == 0:
    schedule.step(torch.randn(8, 8))  # here
dist.barrier()
if rank == 0:
    print("trained")
dist.destroy_process_group()
