"""DTensor's tensor parallelism; the bug: rank 0 alone generates a sample between two steps."""

import sys

import torch
import torch.distributed as dist
from torch.distributed.tensor import parallel

dist.init_process_group("gloo")
torch.manual_seed(0)
layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))
plan = {"0": parallel.ColwiseParallel(), "2": parallel.RowwiseParallel()}
model = parallel.parallelize_module(layers, dist.init_device_mesh("cpu", (2,)), plan)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 1 and (sys.argv[1] == "healthy" or dist.get_rank() == 0):
        with torch.no_grad():
            print("sample", model(torch.ones(1, 8)).sum().item())  # here
dist.destroy_process_group()
