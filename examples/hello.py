"""Every rank says who it is, and all of them add up a number: the first program on a new machine.

    torchrun --nproc-per-node 2 hello.py

With GPUs: hello.py nccl. On two machines, node0 and node1, on node1 with --node-rank 1:

    torchrun --nnodes 2 --node-rank 0 --master-addr node0 --master-port 29500 \
        --nproc-per-node 2 hello.py

With Slurm or MPI, after `export MASTER_ADDR=node0 MASTER_PORT=29500`:

    srun --nodes 2 --ntasks-per-node 2 python hello.py
    mpiexec -hosts node0,node1 -ppn 2 -n 4 python hello.py
"""

import os
import sys

import torch
import torch.distributed as dist


def variable(*names):
    found = [os.environ[name] for name in names if name in os.environ]
    return int(found[0]) if found else sys.exit(f"{names[0]} is not set: see {__file__}")


rank = variable("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
n = variable("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
local = variable("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
backend = sys.argv[1] if len(sys.argv) > 1 else "gloo"
device = torch.device("cuda", local) if backend == "nccl" else torch.device("cpu")

dist.init_process_group(backend, rank=rank, world_size=n)
x = torch.tensor([10**rank], device=device)  # a digit of its own for each rank
dist.all_reduce(x)
print(f"rank {rank} of {n}, on {os.uname().nodename}, {device}: {x.item()}\n", end="", flush=True)
dist.destroy_process_group()
