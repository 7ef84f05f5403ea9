"""What an all_reduce costs with each algorithm of by_hand, on gloo and on MPI; then a step of
training on gloo and on by_hand. The same ranks, the same tensors, in turn.

    python benchmarks/algorithms.py [--rounds 9] [--nproc 4 2] [--json FILE]

`memcpy` is a copy of the tensor in every rank at the same time.
"""

import argparse
import functools
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from collectives import launch
from collectives.algorithms import table
from collectives.backends.availability import missing_for_mpi
from collectives.process_groups.by_hand import memory
from collectives.process_groups.by_hand.choice import SHARED_MEMORY, Options

# Bytes of the tensor, and how many calls in a row are timed together.
SIZES = {4: 60, 2**16: 30, 2**20: 8, 2**24: 2, 2**26: 1}

# The widths of the layers of the model that is trained, and how many steps are timed together.
WIDTHS, STEPS = (32, 256, 1024), 3


def contenders(n: int) -> list[str]:
    """On one machine the hierarchical algorithm is the binomial tree."""
    ours = [name for name in table.names("all_reduce", n) if name != "hierarchical"]
    shared = [] if memory.missing() else [SHARED_MEMORY]
    return ["memcpy", "gloo", *([] if missing_for_mpi() else ["mpi"]), *shared, *ours]


def time_all_reduce(rank: int, n: int, device, rounds: int, names: list[str]) -> dict:
    """The seconds of a call in each round, by size and contender."""
    torch.set_num_threads(1)  # the ranks would take each other's cores
    groups = {name: _group(name) for name in names}
    found: dict = {}
    for size, calls in SIZES.items():
        x = torch.empty(size // 4)
        runs = {name: _call(name, x, group) for name, group in groups.items()}
        for number in range(rounds + 1):  # the first round connects, and touches the memory
            for name, group in groups.items():
                dist.all_reduce(x.fill_(1), group=group)
                assert (x == n).all(), f"rank {rank}: {name} summed {n} ones to {x[0]}"
                x.zero_()
                dist.barrier(group)
                begin = time.perf_counter()
                for _ in range(calls):
                    runs[name]()
                if number:
                    seconds = (time.perf_counter() - begin) / calls
                    found.setdefault((size, name), []).append(seconds)
    return found


def _group(name: str):
    if name in ("memcpy", "mpi", "mpi4py"):
        return dist.group.WORLD
    if name == "gloo":
        return dist.new_group(backend="gloo")
    return dist.new_group(backend="by_hand", pg_options=Options(algorithm=name))


def _call(name: str, x: torch.Tensor, group) -> Callable[[], object]:
    if name == "memcpy":
        return functools.partial(torch.zeros_like(x).copy_, x)
    if name == "mpi4py":
        from collectives.process_groups.mpi.library import MPI
        from collectives.process_groups.mpi.types import address

        message = [address(x), x.numel(), MPI.FLOAT]
        return lambda: group.comm.Iallreduce(MPI.IN_PLACE, message, MPI.SUM).Wait()
    return functools.partial(dist.all_reduce, x, group=group)


def time_training(rank: int, n: int, device, rounds: int) -> dict:
    """The seconds of an optimizer step in each round, by kind and width, and by backend."""
    torch.set_num_threads(1)
    groups = {"gloo": dist.new_group(backend="gloo"), "by_hand": dist.group.WORLD}
    found: dict = {}
    for kind in ("DDP", "FSDP2"):
        for width in WIDTHS:
            models = {name: _model(kind, width, group) for name, group in groups.items()}
            x = torch.randn(8, width)
            for number in range(rounds + 1):
                for name, (model, optimizer) in models.items():
                    dist.barrier()
                    begin = time.perf_counter()
                    for _ in range(STEPS):
                        optimizer.zero_grad()
                        model(x).square().mean().backward()
                        optimizer.step()
                    if number:
                        seconds = (time.perf_counter() - begin) / STEPS
                        found.setdefault((f"{kind}, width {width}", name), []).append(seconds)
    return found


def _model(kind: str, width: int, group):
    """Four linear layers, and their optimizer."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(4)))
    if kind == "DDP":
        model = torch.nn.parallel.DistributedDataParallel(
            model, process_group=group, bucket_cap_mb=1
        )
    else:
        mesh = DeviceMesh.from_group(group, "cpu")
        for layer in (*model, model):
            fully_shard(layer, mesh=mesh)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def medians(by_rank: list[dict]) -> dict[str, dict[str, float]]:
    """Seconds by what was timed, and contender. A round takes as long as its slowest rank."""
    found: dict[str, dict[str, float]] = {}
    for what, name in by_rank[0]:
        rounds = map(max, zip(*(one[what, name] for one in by_rank), strict=True))
        found.setdefault(str(what), {})[name] = float(f"{statistics.median(rounds):.4g}")
    return found


def measure(n: int, rounds: int) -> dict:
    names = contenders(n)
    options = {"timeout": 1200.0, "diagnose": False}
    world = "mpi" if "mpi" in names else "by_hand"
    calls = launch(time_all_reduce, n, args=(rounds, names), backend=world, **options)
    trained = launch(time_training, n, args=(rounds,), backend="by_hand", **options)
    return {
        "rounds": rounds,
        "torch": torch.__version__.partition("+")[0],
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "all_reduce": medians(calls),
        "step": medians(trained),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--nproc", type=int, nargs="+", default=[4, 2])
    parser.add_argument("--json", type=Path, help="write the medians there")
    options = parser.parse_args()
    found = {n: measure(n, options.rounds) for n in options.nproc}
    for n, world in found.items():
        for what in ("all_reduce", "step"):
            for size, seconds in world[what].items():
                for name, took in seconds.items():
                    times = seconds["gloo"] / took
                    print(f"{n} ranks: {what} {size:18} {name:20} {took * 1e3:9.4g} ms", end="")
                    print(f" {times:6.2g}x gloo's speed")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
