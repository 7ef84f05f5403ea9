"""A program with one mistake for each name; it does not import this package.

    python faulty_program.py NAME [RANKS]   # or under torchrun

The line with the mistake, or where the faulty rank stands, ends in `# <- RANK`, or in `# <- all`
where every rank is at fault.
"""

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel


def joins_late(rank, n):
    dist.barrier()


def healthy(rank, n):
    x = torch.ones(4) * rank
    for _ in range(5):
        dist.all_reduce(x)
    # In one piece: the ranks share the pipe.
    os.write(1, f"rank {rank} of {n}: {x[0].item()}\n".encode())


def skip(rank, n):
    x = torch.ones(4)
    dist.all_reduce(x)
    if rank != 2:
        dist.all_reduce(x)
    dist.barrier()  # <- 2


def circle(rank, n):
    dist.recv(torch.empty(1), (rank + 1) % n)  # <- all
    dist.send(torch.ones(1), (rank - 1) % n)


def short_buffer(rank, n):
    if rank == 0:
        dist.send(torch.ones(4), 1)  # <- 0
    elif rank == 1:
        dist.recv(torch.empty(2), 0)  # <- 1


def dies(rank, n):
    dist.barrier()
    if rank == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(1))


def crashes(rank, n):
    dist.barrier()
    if rank == 2:
        ctypes.string_at(0)  # <- 2
    dist.all_reduce(torch.ones(1))


def leaves(rank, n):
    dist.barrier()
    if rank == 1:
        sys.exit()  # <- 1
    dist.all_reduce(torch.ones(1))


def waits_for_a_child(rank, n):
    if rank == 2:
        subprocess.run(["sleep", "60"])  # <- 2
        os.write(1, b"went on\n")
    dist.all_reduce(torch.ones(1))


def uneven(rank, n):
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    for _ in range(3 - (rank == 1)):
        model(torch.ones(4, 2)).sum().backward()
    time.sleep(0.2)


def loss_meets_gradient(rank, n):
    """gloo ends rank 3: three gradients have no room in its one loss."""
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    for _ in range(3 - (rank == 3)):
        model(torch.ones(4, 2)).sum().backward()
    dist.all_reduce(torch.ones(1))  # <- 3


def sent_to_another(rank, n):
    dist.barrier()
    if rank == 0:
        dist.send(torch.ones(1), 1)
        dist.send(torch.ones(1), 1)  # <- 0
    elif rank < 3:
        dist.recv(torch.empty(1), 0)


def stopped(rank, n):
    dist.barrier()  # <- 2
    if rank == 2:
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.all_reduce(torch.ones(1))


def many_calls(rank, n):
    """More calls than a log keeps if it is read rarely."""
    peer = 1 - rank
    for i in range(3000):
        x = torch.ones(1 + i % 3)
        for call in (dist.send, dist.recv)[:: 1 - 2 * rank]:
            call(x, peer)


def main(name, rank, n):
    dist.init_process_group()
    globals()[name](rank, n)
    dist.destroy_process_group()


def start(rank, name, n, file):
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(n)}
    torch.set_num_threads(1)
    if name == "joins_late" and rank == 1:
        time.sleep(14)  # here it is
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=n)
    globals()[name](rank, n)
    dist.destroy_process_group()


if __name__ == "__main__":
    name, n = sys.argv[1], int((sys.argv[2:] or ["4"])[0])
    if name in ("uneven", "loss_meets_gradient"):  # DistributedDataParallel imports it
        import torch._dynamo  # once, before the ranks are forked, and not by each of them
    if "RANK" in os.environ:
        main(name, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            mp.start_processes(
                start,
                (name, n, f"{folder}/store"),
                nprocs=n,
                start_method=(sys.argv[3:] or ["fork"])[0],
            )
