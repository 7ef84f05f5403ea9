"""Under torchrun, init_method="tcp://..." waits until the timeout: every rank is a client.

Expected: rank 0 makes the store at the address that was given. Got: DistNetworkError.

torchrun: 2
bug: 2.13.0
shows: timed out
cured: 2.14.1
thread: https://github.com/pytorch/pytorch/issues/192113
"""

import os
from datetime import timedelta

import torch.distributed as dist

address = f"tcp://127.0.0.1:{int(os.environ['MASTER_PORT']) + 1}"
rank, n = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group(
    "gloo", init_method=address, rank=rank, world_size=n, timeout=timedelta(seconds=5)
)
