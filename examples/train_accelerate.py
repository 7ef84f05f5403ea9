"""Train a network with Hugging Face Accelerate, and continue from its last epoch.

    torchrun --nproc-per-node 2 train_accelerate.py

On two machines, node0 and node1, type this on both, on node1 with --node-rank 1:

    torchrun --nnodes 2 --node-rank 0 --master-addr node0 --master-port 29500 \
        --nproc-per-node 2 train_accelerate.py --folder /shared/run

It trains the network of train_ddp.py to the same parameters. On GPUs, `accelerate launch` starts
the ranks as well. On a CPU, `accelerate launch --cpu --num_processes 2` starts one process only,
and says nothing: so the first line that this program prints is the number of ranks.
"""

import argparse
import sys
from pathlib import Path

import torch
import torch.distributed.nn.functional  # before there is a group, which it would keep
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import broadcast_object_list
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset


def digits(train, dtype):
    """1,797 images of digits, of which 1,536 are to train. Put your own dataset here."""
    images, labels = load_digits(return_X_y=True)
    part = slice(1536) if train else slice(1536, None)
    return TensorDataset(torch.tensor(images[part] / 16, dtype=dtype), torch.tensor(labels[part]))


class Residual(nn.Module):
    """The block of a ResNet: two convolutions with batch norm, and a way around them."""

    def __init__(self, width):
        super().__init__()
        one, two = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.inner = nn.Sequential(
            one, nn.BatchNorm2d(width), nn.ReLU(), two, nn.BatchNorm2d(width)
        )

    def forward(self, x):
        return (x + self.inner(x)).relu()


def network(name):
    if name == "linear":
        return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    stem = nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
    return nn.Sequential(
        *stem, nn.ReLU(), Residual(8), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 10)
    )


def validate(accelerator, model, loader):
    """The mean loss and the accuracy. Each image counts once, whatever the number of ranks."""
    model.eval()
    found = []
    with torch.no_grad():
        for images, labels in loader:
            output = model(images)
            losses = cross_entropy(output, labels, reduction="none")
            pair = torch.stack([losses, (output.argmax(1) == labels).to(losses.dtype)], dim=1)
            found.append(accelerator.gather_for_metrics(pair))  # returns the pairs of all ranks
    model.train()
    return torch.cat(found).mean(0).tolist()


def main(options):
    # With the seed 0, all ranks shuffle as DistributedSampler does.
    config = DataLoaderConfiguration(use_seedable_sampler=True, data_seed=0)
    accelerator = Accelerator(
        cpu=not torch.cuda.is_available(),
        gradient_accumulation_steps=options.accumulation,
        dataloader_config=config,
    )
    n, say = accelerator.num_processes, accelerator.print
    size, rest = divmod(options.batch, n * options.accumulation)
    if rest:
        sys.exit(f"--batch must be a multiple of {n} ranks * --accumulation")
    if options.sync_batch_norm and accelerator.device.type == "cpu":
        sys.exit("--sync-batch-norm needs GPUs: torch has SyncBatchNorm for them only")
    say(f"{n} ranks with batches of {size} ({accelerator.device.type})")
    dtype = torch.float64 if options.double else torch.float32
    torch.manual_seed(0)
    model = network(options.model).to(dtype)
    if options.sync_batch_norm:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    steps = 1536 // options.batch
    # subtle: a schedule that is prepared makes n steps at once, so this one is not.
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs * steps)
    data = DataLoader(digits(True, dtype), size, shuffle=True, drop_last=True)
    held_out = DataLoader(digits(False, dtype), 64)
    model, optimizer, data, held_out = accelerator.prepare(model, optimizer, data, held_out)
    accelerator.register_for_checkpointing(schedule)
    counts = broadcast_object_list([len(list(options.folder.glob("epoch-*")))])
    done = counts[0]  # rank 0 has counted for all
    if done:
        accelerator.load_state(options.folder / f"epoch-{done - 1}")
    for epoch in range(done, options.epochs):
        data.set_epoch(epoch)
        for images, labels in data:
            with accelerator.accumulate(model):  # no_sync() but for the last batch of a step
                accelerator.backward(cross_entropy(model(images), labels))
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                schedule.step()
        loss, accuracy = validate(accelerator, model, held_out)
        say(f"epoch {epoch}: held out {loss:.3f}, {accuracy:.1%}")
        accelerator.save_state(options.folder / "draft")
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:  # it gets its name when all of it is there
            (options.folder / "draft").rename(options.folder / f"epoch-{epoch}")
    # Without `module.` before each name, which `prepare` has put there.
    state = accelerator.unwrap_model(model).state_dict()
    accelerator.save({"model": state}, options.folder / "model.pt")
    accelerator.end_training()  # destroys the group, if there is one


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=64, help="of all ranks together in a step")
    parser.add_argument("--accumulation", type=int, default=2, help="batches of a rank in a step")
    parser.add_argument("--model", choices=["linear", "conv"], default="linear")
    parser.add_argument("--sync-batch-norm", action="store_true", help="statistics of all ranks")
    parser.add_argument("--folder", type=Path, default="run", help="that all ranks see")
    parser.add_argument("--double", action="store_true", help="with float64")
    main(parser.parse_args())
