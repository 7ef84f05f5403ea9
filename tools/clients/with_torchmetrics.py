"""torchmetrics; the bug: rank 0 alone computes the metric, which gathers from all."""

import sys

import torch
import torch.distributed as dist
from torchmetrics.classification import MulticlassAccuracy

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
accuracy = MulticlassAccuracy(num_classes=3)
for _ in range(3):
    accuracy.update(torch.randn(4, 3), torch.randint(0, 3, (4,)))
if sys.argv[1] == "healthy" or dist.get_rank() == 0:
    print("accuracy", accuracy.compute().item())  # here
dist.barrier()
dist.destroy_process_group()
