"""FSDP2; the bug: the full state dict is collected on rank 0 alone."""

import sys

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3)))
mesh = dist.init_device_mesh("cpu", (2,))
for layer in (*model, model):
    fully_shard(layer, mesh=mesh)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(3):
    model(torch.randn(4, 8)).pow(2).mean().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
if sys.argv[1] == "healthy" or dist.get_rank() == 0:
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))  # here
dist.barrier()
if dist.get_rank() == 0:
    print("collected", len(state))
dist.destroy_process_group()
