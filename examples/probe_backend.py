"""Which calls does a backend have on a device? Rank 0 prints a table.

    torchrun --nproc-per-node 2 probe_backend.py gloo cpu

On node0 and node1 (--node-rank 1); or once, after `export MASTER_ADDR=node0 MASTER_PORT=29500`:

    torchrun --nnodes 2 --node-rank 0 --master-addr node0 probe_backend.py gloo cpu
    srun --nodes 2 python probe_backend.py gloo cpu
    mpiexec -hosts node0,node1 -ppn 1 -n 2 python probe_backend.py gloo cpu
"""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

NAMES = "RANK WORLD_SIZE", "PMI_RANK PMI_SIZE", "SLURM_PROCID SLURM_STEP_NUM_TASKS"
names = next(names for names in map(str.split, NAMES) if {*names} <= {*os.environ})
rank, n = (int(os.environ[name]) for name in names)
backend, device = sys.argv[1:] or ("gloo", "cpu")
torch.set_default_device(f"cuda:{rank % torch.cuda.device_count()}" if device == "cuda" else device)
dist.init_process_group(backend, rank=rank, world_size=n, timeout=timedelta(seconds=20))
one, whole, parts = torch.ones(1), torch.ones(n), [torch.ones(1) for _ in range(n)]
CALLS = {"broadcast": (one, 0), "reduce": (one, 0), "all_reduce": (one,), "barrier": ()}
CALLS |= dict.fromkeys(("gather", "scatter"), (one, parts if rank == 0 else None))
CALLS |= {"all_gather": (parts, one), "reduce_scatter": (one, parts)}
new = hasattr(dist, "all_gather_single")  # it and reduce_scatter_single: names since torch 2.13
CALLS |= {"all_gather_single" if new else "all_gather_into_tensor": (whole, one)}
CALLS |= {"reduce_scatter_single" if new else "reduce_scatter_tensor": (one, whole)}
CALLS |= {"all_to_all_single": (whole.clone(), whole), "all_to_all": (parts, list(whole.split(1)))}
CALLS |= {"send": (one, 1), "recv": (one, 1)} if rank == 0 else {}
CALLS |= {"recv": (one, 0), "send": (one, 0)} if rank == 1 else {}
for name, arguments in CALLS.items():
    try:
        getattr(dist, name)(*arguments)
        said = "works"
    except Exception as error:
        said = str(error).splitlines()[0]
    if rank == 0:
        print(f"{name:24}{said}", flush=True)
dist.destroy_process_group()
