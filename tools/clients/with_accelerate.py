"""Accelerate; the bug: the main process alone evaluates, and gather_for_metrics is a collective."""

import sys

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
accelerator = Accelerator(cpu=True)
x = torch.randn(24, 4)
loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=2)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)


def evaluate():
    with torch.no_grad():
        return sum(len(accelerator.gather_for_metrics(model(x))) for x, _ in loader)  # here


for _ in range(2):
    for x, y in loader:
        accelerator.backward(torch.nn.functional.mse_loss(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
    if sys.argv[1] == "healthy" or accelerator.is_main_process:
        accelerator.print("evaluated", evaluate())
    accelerator.wait_for_everyone()
accelerator.end_training()
