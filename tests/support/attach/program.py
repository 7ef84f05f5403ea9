"""Jobs that hang or are busy, to be looked at from outside; expect.tsv says what must be seen.

The mark at the end of a line is its name in expect.tsv. This program imports nothing of ours.

    torchrun --nproc-per-node 3 program.py torchrun
    python program.py spawn FILE          # starts three ranks, which meet in FILE
    python program.py scripts FILE RANK   # one of two ranks
"""

import sys
import threading
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset


class Stuck(IterableDataset):
    def __iter__(self):
        yield torch.ones(4)
        time.sleep(1000)  # <- worker


def train():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    for _ in range(2 if dist.get_rank() == 1 else 3):
        loss = model(torch.ones(1, 4)).sum()
        loss.backward()  # <- backward
    for _ in DataLoader(Stuck(), num_workers=1):  # <- loader
        pass


def spawned(index, file):
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=index, world_size=3)
    x, two = torch.ones(4), dist.new_group([0, 1])
    if index == 0:
        beside = threading.Thread(target=reduce, args=(x, two), daemon=True)
        beside.start()
        beside.join()
    if index == 1:
        dist.recv(x, src=0, tag=7)  # <- recv


def reduce(x, group):
    dist.all_reduce(x, group=group)  # <- thread


def busy(file, rank):
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    x = torch.ones(4)
    while True:
        dist.all_reduce(x)  # <- busy


if __name__ == "__main__":
    if sys.argv[1] == "torchrun":
        train()
    elif sys.argv[1] == "spawn":
        mp.spawn(spawned, (sys.argv[2],), nprocs=3)
    else:
        busy(sys.argv[2], int(sys.argv[3]))
