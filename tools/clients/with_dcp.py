"""Distributed checkpoints; the bug: rank 0 alone saves, although all ranks must."""

import sys
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.tensor import Shard, distribute_tensor

dist.init_process_group("gloo")
mesh = dist.init_device_mesh("cpu", (2,))
state = {"weight": distribute_tensor(torch.arange(8.0), mesh, [Shard(0)])}
folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
dist.broadcast_object_list(folder, src=0)
if sys.argv[1] == "healthy" or dist.get_rank() == 0:
    dcp.save(state, checkpoint_id=folder[0])  # here
dist.barrier()
dcp.load(state, checkpoint_id=folder[0])
if dist.get_rank() == 0:
    print("loaded", list(state))
dist.destroy_process_group()
