"""A training script as blogs show it, without their faults: docs/your-script.md goes through it.

Start it by `torchrun --nproc-per-node 2 cured.py`."""

import os
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

EPOCHS, BATCH, ACCUMULATE = 3, 16, 4


def digits():
    """1,500 images of digits to train with, and 297 others to validate with."""
    images, labels = map(torch.tensor, load_digits(return_X_y=True))
    images = (images / 16).float()
    return TensorDataset(images[:1500], labels[:1500]), TensorDataset(images[1500:], labels[1500:])


def network():
    hidden = nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1)
    return nn.Sequential(*hidden, nn.Linear(32, 10))


def train(model, loader, optimizer, device):
    model.train()
    optimizer.zero_grad()
    for i, (images, labels) in enumerate(loader):
        first = i - i % ACCUMULATE  # of the micro-batches of this step, of which the last has fewer
        parts = min(ACCUMULATE, len(loader) - first)
        is_last = i == first + parts - 1
        with nullcontext() if is_last else model.no_sync():
            loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            (loss / parts).backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()


@torch.no_grad()
def validate(model, data, device, rank, n):
    model.eval()
    for buffer in model.buffers():
        dist.broadcast(buffer, src=0)
    right = torch.zeros((), device=device)
    for images, labels in DataLoader(Subset(data, range(rank, len(data), n)), 64):
        right += (model(images.to(device)).argmax(1) == labels.to(device)).sum()
    dist.all_reduce(right)
    return right.item() / len(data)


def main():
    rank, gpu = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    on_gpus = torch.cuda.is_available()
    device = torch.device("cuda", gpu) if on_gpus else torch.device("cpu")
    dist.init_process_group("nccl" if on_gpus else "gloo")
    n = dist.get_world_size()
    torch.manual_seed(rank)
    data, held_out = digits()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, BATCH, sampler=sampler)
    model = network().to(device)
    model = DistributedDataParallel(model, device_ids=[gpu] if on_gpus else None)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    found = [None]
    if rank == 0 and Path("last.pt").exists():
        found = [torch.load("last.pt", map_location="cpu")]
    dist.broadcast_object_list(found, src=0)
    if found[0]:
        model.module.load_state_dict(found[0]["model"])
        optimizer.load_state_dict(found[0]["optimizer"])
    for epoch in range(found[0]["epoch"] + 1 if found[0] else 0, EPOCHS):
        sampler.set_epoch(epoch)
        train(model, loader, optimizer, device)
        accuracy = validate(model.module, held_out, device, rank, n)
        if rank == 0:
            print(f"epoch {epoch}: {accuracy:.1%} of {len(held_out)} recognized", flush=True)
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save({"epoch": epoch, **state}, "last.pt")


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
