"""DeepSpeed, ZeRO stage 2; the bug: rank 0 alone saves the checkpoint, of which each has a part."""

import os
import sys
import tempfile

import torch
import torch.distributed as dist

os.environ["DS_ACCELERATOR"] = "cpu"  # or it says with the time that it looked for another one
import deepspeed

CONFIG = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2}}

deepspeed.init_distributed("gloo", verbose=False)
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
engine, *_ = deepspeed.initialize(
    model=model, optimizer=torch.optim.Adam(model.parameters()), config=CONFIG
)
x = torch.randn(24, 4)
for batch in x[dist.get_rank() :: dist.get_world_size()].split(2):
    loss = engine(batch).square().mean()
    engine.backward(loss)
    engine.step()
with tempfile.TemporaryDirectory() as folder:
    if sys.argv[1] == "healthy" or dist.get_rank() == 0:
        engine.save_checkpoint(folder)  # here
    dist.barrier()
dist.destroy_process_group()
