"""Train a network with nn.DataParallel: one process, which has a thread for each GPU.

    python train_dp.py

Compare it with train_ddp.py, which trains the same network to the same parameters. This program is
shorter: it has no launcher, no ranks, no sampler for each, and no group. What that costs: in each
step the first GPU sends the whole model to all others and adds up all their gradients, and the
threads share one Python. And it cannot run on two machines. Without a GPU, DataParallel calls the
model as it is.
"""

import argparse
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def digits(train, dtype):
    """1,797 images of digits, of which 1,536 are to train. Put your own dataset here."""
    images, labels = load_digits(return_X_y=True)
    part = slice(1536) if train else slice(1536, None)
    return TensorDataset(torch.tensor(images[part] / 16, dtype=dtype), torch.tensor(labels[part]))


def validate(model, dataset, device):
    """The mean loss and the accuracy."""
    model.eval()
    with torch.no_grad():
        images, labels = (part.to(device) for part in dataset.tensors)
        output = model(images)
        loss, right = cross_entropy(output, labels), (output.argmax(1) == labels).double().mean()
    model.train()
    return loss.item(), right.item()


def main(options):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.float64 if options.double else torch.float32
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).to(device, dtype)
    parallel = nn.DataParallel(model)  # DDP: after init_process_group, DistributedDataParallel
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data, held_out = digits(True, dtype), digits(False, dtype)
    order = DistributedSampler(data, num_replicas=1, rank=0)  # that of train_ddp.py, in one part
    loader = DataLoader(data, options.batch, sampler=order, drop_last=True)  # DDP: batch / n
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs * len(loader))
    print(f"{max(1, torch.cuda.device_count())} threads with {options.batch} ({device.type})")
    for epoch in range(options.epochs):
        order.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            # All outputs come back to the first GPU, so this is the loss of the whole batch.
            loss = cross_entropy(parallel(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            schedule.step()
        held_out_loss, accuracy = validate(parallel, held_out, device)
        print(f"epoch {epoch}: held out {held_out_loss:.3f}, {accuracy:.1%}")
    torch.save({"model": model.state_dict()}, options.checkpoint)  # of the model, without `module.`


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=64, help="of all GPUs together")
    parser.add_argument("--checkpoint", type=Path, default="checkpoint.pt")
    parser.add_argument("--double", action="store_true", help="with float64")
    main(parser.parse_args())
