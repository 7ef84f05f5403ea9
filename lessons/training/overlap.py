"""Times DDP with a bucket for each layer, and with one for all: a program of the lesson buckets."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def seconds_of_a_step(bucket_cap_mb):
    layers = [nn.Linear(512, 512) for _ in range(8)]  # 1 MiB each
    for layer in layers:  # as if it took 0.1 s to compute its gradient
        layer.register_full_backward_pre_hook(lambda *_: time.sleep(0.1))
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=bucket_cap_mb)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        model(torch.ones(1, 512)).sum().backward()
        times.append(time.perf_counter() - start)
    return sorted(times)[2]


if __name__ == "__main__":
    dist.init_process_group("gloo")
    several, one = seconds_of_a_step(1), seconds_of_a_step(100)
    if dist.get_rank() == 0:
        print(f"with one bucket, a step takes {one / several:.1f} times as long as with eight")
    dist.barrier()
    dist.destroy_process_group()
