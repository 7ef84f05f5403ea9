"""6 of 9: a batch goes through the model in parts, and its gradients travel once.

Start it by `torchrun --nproc-per-node 2 6_micro_batches.py`.
"""

import os
from contextlib import nullcontext

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS, BATCH, PARTS = 3, 120, 4


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mix", torch.randn(64, 64) / 8)  # random, and not trained
        layers = nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)
        self.layers = nn.Sequential(*layers)

    def forward(self, images):
        return self.layers(images @ self.mix)


def digits():
    """1,500 images of digits to train with, and 297 others. Put your own data here."""
    images, labels = map(torch.tensor, load_digits(return_X_y=True))
    return [TensorDataset(images[a:b] / 16, labels[a:b]) for a, b in ((0, 1500), (1500, 1797))]


def main():
    # Each rank takes a GPU of its machine, which counts them from 0; or all take the CPU.
    gpu = int(os.environ["LOCAL_RANK"])
    on_gpus = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda", gpu) if on_gpus else torch.device("cpu")
    if on_gpus:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpus else "gloo")
    rank, n = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)  # as if it had none: every process begins with other numbers
    data, _ = digits()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, BATCH // n, sampler=sampler, num_workers=1)
    model = Network().double().to(device)
    model = DistributedDataParallel(model, device_ids=[gpu] if on_gpus else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)  # else every epoch has the order of the first
        model.train()
        for images, labels in loader:
            optimizer.zero_grad()
            parts = list(zip(images.chunk(PARTS), labels.chunk(PARTS), strict=True))
            for number, (x, y) in enumerate(parts, 1):
                with model.no_sync() if number < len(parts) else nullcontext():
                    loss = cross_entropy(model(x.to(device)), y.to(device))
                    (loss * len(y) / len(labels)).backward()
            optimizer.step()
        weights = sum(one.sum().item() for one in model.parameters())
        print(f"rank {rank}, epoch {epoch}: loss {loss.item():.4f}, weights {weights:.6f}")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
