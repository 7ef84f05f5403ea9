"""torchft's group as a backend: `collectives verify torchft --import torchft_gloo --quick`."""

import torch.distributed as dist
from torchft import ProcessGroupGloo


def make(store, rank, size, timeout):
    """torchft's groups meet at a TCPStore, which rank 0 opens."""
    if rank == 0:
        make.kept = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        store.set("torchft", f"127.0.0.1:{make.kept.port}/torchft")
    group = ProcessGroupGloo(timeout=timeout)
    group.configure(store.get("torchft").decode(), "verify", rank, size)
    return group


if "torchft" not in dist.Backend.backend_list:
    dist.Backend.register_backend("torchft", make, devices=["cpu"])
