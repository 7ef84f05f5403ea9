"""Trains a network, and prints how long a step takes: the program that the lesson faster times.

    torchrun --nproc-per-node 2 speed.py --images 256

Rank 0 prints JSON: the seconds of a step, and what the torch profiler noted in one more step, for
each rank, as [what, from, to] in milliseconds.
"""

import argparse
import itertools
import json
import statistics
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

# What the profiler calls them, and how we do.
NAMES = {
    "DistributedDataParallel.forward": "forward",
    "autograd::engine::evaluate_function: AddmmBackward0": "backward",
    "gloo:all_reduce": "all_reduce",
    "Optimizer.step#SGD.step": "optimizer",
}


def measured():
    """What benchmarks/training_speed.py found with this program."""
    return json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))


def waiting(spans):
    """The part of a step in which a rank computes nothing."""
    end = max(stop for _, _, stop in spans)
    return 1 - sum(stop - begin for what, begin, stop in spans if what != "all_reduce") / end


def network():
    sizes = [64, 512, 512, 512, 512, 10]
    layers = [nn.Linear(*pair) for pair in itertools.pairwise(sizes)]
    return nn.Sequential(*[part for layer in layers for part in (layer, nn.ReLU())][:-1])


def timed_steps(images, fp16):
    """Seconds of each step, and the parts of the last one. DDP ends here, before its group."""
    n = dist.get_world_size()
    model = DistributedDataParallel(network(), bucket_cap_mb=1)
    if fp16:
        model.register_comm_hook(None, fp16_compress_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, labels = torch.rand(images // n, 64), torch.arange(images // n) % 10

    def step():
        optimizer.zero_grad()
        cross_entropy(model(x), labels).backward()
        optimizer.step()

    seconds = []
    for _ in range(11):
        dist.barrier()
        begin = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begin)
    dist.barrier()
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        step()

    parts = [
        (NAMES[event.name], event.time_range.start / 1000, event.time_range.end / 1000)
        for event in profiled.events()
        if event.name in NAMES
    ]
    return seconds, parts


def main(images, fp16):
    torch.set_num_threads(1)  # the ranks of one machine share its cores
    dist.init_process_group("gloo")
    rank, n = dist.get_rank(), dist.get_world_size()
    seconds, ours = timed_steps(images, fp16)
    ranks = [None] * n if rank == 0 else None
    dist.gather_object(ours, ranks)
    if rank == 0:
        # The first two steps connect the ranks, and build the buckets.
        print(json.dumps({"seconds": statistics.median(seconds[2:]), "profile": ranks}))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=256, help="in a step, on all ranks together")
    parser.add_argument("--fp16", action="store_true", help="send the gradients as float16")
    main(**vars(parser.parse_args()))
