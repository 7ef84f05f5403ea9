"""Train a network on several ranks with DistributedDataParallel. Start your own program from this.

    torchrun --nproc-per-node 2 --max-restarts 3 examples/train_ddp.py

It needs torch, and scikit-learn for its data, and nothing of this repository. If it is killed,
torchrun starts it again; if it is stopped, type the same command again. Both times it continues
from its checkpoint. On several machines with --rdzv-backend c10d, put
TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in front of torchrun, because a restart needs a new store.
"""

import argparse
import os
import signal
import sys
from contextlib import nullcontext
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # before the group: see the end of main
from sklearn.datasets import load_digits
from torch import nn
from torch.distributed.rendezvous import rendezvous
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset


class Digits(Dataset):
    """1,797 images of digits, of which 1,536 are to train. Put your own data here."""

    def __init__(self, train, dtype):
        images, labels = load_digits(return_X_y=True)
        part = slice(1536) if train else slice(1536, None)
        self.images, self.labels = torch.tensor(images[part] / 16, dtype=dtype), labels[part]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, number):
        return self.images[number], self.labels[number]


def start():
    """Meet the other ranks. Each takes a GPU of its machine; where there are too few, the CPU."""
    device = torch.device("cpu")
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    store, rank, n = next(rendezvous("env://"))
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        # subtle: torchrun keeps its store when it starts killed ranks again, with their addresses
        store = dist.PrefixStore(os.environ["TORCHELASTIC_RESTART_COUNT"], store)
    backend = "gloo" if device.type == "cpu" else "nccl"
    dist.init_process_group(backend, store=store, rank=rank, world_size=n)
    return device, rank, n


def save(file, step, **parts):
    """Rank 0 writes all parts, and the file gets its name when all of it is on the disk."""
    if dist.get_rank() == 0:
        state = {name: part.state_dict() for name, part in parts.items()}
        with (draft := Path(f"{file}.draft")).open("wb") as written:
            torch.save({"step": step} | state, written)
            os.fsync(written.fileno())
        draft.replace(file)


def load(file, **parts):
    """Rank 0 reads the file, and all ranks continue from its step. Without a file that is 0."""
    found = [None]
    if dist.get_rank() == 0 and file.exists():
        found = [torch.load(file, map_location="cpu")]
    dist.broadcast_object_list(found)
    for name, part in parts.items():
        if found[0]:
            part.load_state_dict(found[0][name])
    return found[0]["step"] if found[0] else 0


def train_step(model, optimizer, batches, device, accumulation):
    """One step on the next few batches of this rank. The loss is that of this rank."""
    optimizer.zero_grad()
    total = 0.0
    for left in reversed(range(accumulation)):
        images, labels = next(batches)
        with model.no_sync() if left else nullcontext():  # one reduction, with the last batch
            loss = cross_entropy(model(images.to(device)), labels.to(device)) / accumulation
            loss.backward()
        total += loss.item()
    optimizer.step()
    return total


def validate(model, dataset, device, rank, n):
    """The mean loss and the accuracy. Each image counts once, whatever the number of ranks."""
    model.eval()
    sums = torch.zeros(2, dtype=torch.float64, device=device)
    with torch.no_grad():
        for images, labels in DataLoader(Subset(dataset, range(rank, len(dataset), n)), 256):
            output, labels = model(images.to(device)), labels.to(device)
            sums[0] += cross_entropy(output, labels, reduction="sum")
            sums[1] += (output.argmax(1) == labels).sum()
    dist.all_reduce(sums)
    model.train()
    return (sums / len(dataset)).tolist()


def is_stopped(stops, device):
    """Whether a signal has reached any rank: all ranks stop after the same step."""
    count = torch.tensor(len(stops), device=device)
    dist.all_reduce(count, op=dist.ReduceOp.MAX)
    return count.item() > 0


def main(options):
    stops = []
    signal.signal(signal.SIGTERM, lambda number, frame: stops.append(number))
    device, rank, n = start()
    dtype = torch.float64 if options.double else torch.float32
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).to(device, dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data, held_out = Digits(True, dtype), Digits(False, dtype)
    sampler = DistributedSampler(data)
    size = options.batch // n // options.accumulation
    loader = DataLoader(data, size, sampler=sampler, drop_last=True)
    steps = len(loader) // options.accumulation  # in an epoch
    last = options.epochs * steps
    schedule = CosineAnnealingLR(optimizer, last)
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
    step = load(options.checkpoint, **parts)
    if rank == 0:
        print(f"{n} ranks with batches of {size}, from step {step} of {last}", flush=True)

    ddp = DistributedDataParallel(model)
    for epoch in range(step // steps, options.epochs):
        sampler.set_epoch(epoch)
        batches = islice(loader, step % steps * options.accumulation, None)  # without those done
        while step < (epoch + 1) * steps:
            torch.manual_seed(step * n + rank)  # so no random state must be saved
            loss = train_step(ddp, optimizer, batches, device, options.accumulation)
            schedule.step()
            step += 1
            stopped = is_stopped(stops, device)
            if stopped or step % options.save_every == 0 or step == last:
                save(options.checkpoint, step, **parts)
            if stopped:
                del ddp  # see below
                dist.destroy_process_group()
                sys.exit(f"stopped after step {step}: type the same command again to continue")
        held_out_loss, accuracy = validate(model, held_out, device, rank, n)
        if rank == 0:
            print(f"epoch {epoch}: loss {loss:.3f}, held out {held_out_loss:.3f}, {accuracy:.1%}")
    # subtle: here the group must really end. If DDP keeps it, DDP will end it while it holds the
    # lock of Python (GIL), and may wait forever for a thread of gloo that needs the lock to free a
    # tensor. Functions of torch.distributed.nn keep the group of the time of their import as an
    # argument. If an optimizer imports them later, the group outlives the interpreter, and gloo may
    # crash it.
    del ddp
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=64, help="of all ranks together in a step")
    parser.add_argument("--accumulation", type=int, default=2, help="batches of a rank in a step")
    parser.add_argument("--save-every", type=int, default=10, help="steps")
    parser.add_argument("--checkpoint", type=Path, default="checkpoint.pt")
    parser.add_argument("--double", action="store_true", help="with float64")
    main(parser.parse_args())
