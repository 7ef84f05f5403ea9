"""The training of the lesson elastic: its result is the same to the last bit with 1 rank or 2.

    torchrun ... elastic_train.py FOLDER

Rank 0 saves after every 10 steps, and notes each step in the folder's log. The steps take longer
until there is a file `hurry`, so that an accident finds the training at work.
"""

import datetime
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

folder = Path(sys.argv[1])
Path("/run/disk/worker").write_text(str(os.getpid()))
Path("/run/disk/agent").write_text(str(os.getppid()))
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=5))
rank, n = dist.get_rank(), dist.get_world_size()

random = torch.Generator().manual_seed(0)
inputs = torch.randn(12, 4, generator=random, dtype=torch.float64)
targets = inputs.sum(1)
begin, weights = 0, torch.zeros(4, dtype=torch.float64)
if (folder / "checkpoint.pt").exists():
    begin, weights = torch.load(folder / "checkpoint.pt")

for step in range(begin + 1, 1201):
    gradient = torch.zeros(4, dtype=torch.float64)
    for x, y in zip(inputs[rank::n], targets[rank::n], strict=True):
        # multiples of 2**-40: their sum is exact in any order
        gradient += (2**40 * (x @ weights - y) * x).round() / 2**40
    dist.all_reduce(gradient)
    weights -= 1e-4 * gradient
    if rank == 0 and step % 10 == 0:
        torch.save([step, weights], folder / "draft")
        os.replace(folder / "draft", folder / "checkpoint.pt")
    if rank == 0:
        with (folder / "log").open("a") as log:
            log.write(f"{n} {begin} {step} {time.time()}\n")
    if not (folder / "hurry").exists():
        time.sleep(0.05)
dist.destroy_process_group()
