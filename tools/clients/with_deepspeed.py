"""DeepSpeed's ZeRO 2; the bug: save_checkpoint on rank 0 alone."""

import sys
import tempfile

import deepspeed
import torch
import torch.distributed as dist

deepspeed.init_distributed(dist_backend="gloo")
torch.manual_seed(0)
model = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
config = {
    "train_micro_batch_size_per_gpu": 2,
    "zero_optimization": {"stage": 2},
    "zero_allow_untested_optimizer": True,
    "zero_force_ds_cpu_optimizer": False,
}
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
for _ in range(3):
    engine.backward(engine(torch.randn(2, 16)).pow(2).mean())
    engine.step()
with tempfile.TemporaryDirectory() as folder:
    if sys.argv[1] == "healthy" or dist.get_rank() == 0:
        engine.save_checkpoint(folder)  # here
    dist.barrier()
dist.destroy_process_group()
