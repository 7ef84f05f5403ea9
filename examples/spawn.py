"""A program that starts its ranks itself, without torchrun: on GPUs where every rank can have one.

    python spawn.py

On two machines, node0 and node1, on node1 with --machine 1:

    python spawn.py --machines 2 --machine 0 --address node0

With Slurm or MPI one task on each machine starts the ranks:

    srun --nodes 2 --ntasks-per-node 1 \
        sh -c 'python spawn.py --machines 2 --machine $SLURM_NODEID --address node0'
    mpiexec -hosts node0,node1 -ppn 1 -n 2 \
        sh -c 'python spawn.py --machines 2 --machine $PMI_RANK --address node0'
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed import rendezvous


def work(local, options):
    rank, n = options.machine * options.ranks + local, options.machines * options.ranks
    # rank 0 opens the store
    store, *_ = next(rendezvous(f"tcp://{options.address}:{options.port}", rank, n))
    store.set(f"GPU of {rank}", str(local < torch.cuda.device_count()))
    on_gpus = all(store.get(f"GPU of {one}") == b"True" for one in range(n))
    device = torch.device("cuda", local) if on_gpus else torch.device("cpu")
    if on_gpus:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpus else "gloo", store=store, rank=rank, world_size=n)
    x = torch.tensor([10**rank], device=device)
    dist.all_reduce(x)
    where = f"on {os.uname().nodename}, {device}"
    print(f"rank {rank} of {n}, {where}: {x.item()}\n", end="", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name, default in ("ranks", 2), ("machines", 1), ("machine", 0), ("port", 29500):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--address", default="127.0.0.1", help="of machine 0")
    options = parser.parse_args()
    torch.multiprocessing.spawn(work, (options,), options.ranks)  # work(0, options), work(1, ...
