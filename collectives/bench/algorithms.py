"""What an all_reduce costs with each algorithm of by_hand, on gloo and on MPI; what a step of
training costs. The same ranks, the same tensors, in turn.
"""

import os
import platform
import time
from collections.abc import Callable

from collectives.backends.algorithms import table
from collectives.backends.availability import missing_for_mpi
from collectives.backends.by_hand import memory
from collectives.backends.by_hand.choice import SHARED_MEMORY

# Bytes of the tensor, and how many calls in a row are timed together.
SIZES = {4: 60, 2**16: 30, 2**20: 8, 2**24: 2, 2**26: 1}

# The widths of the layers of the model that is trained.
WIDTHS = (32, 256, 1024)

# The time limit of all rounds together, in seconds.
_LIMIT = 1200.0

# What is trained.
KINDS = ("DDP", "FSDP2")


def contenders(n: int) -> list[str]:
    """What is timed: a plain copy of the tensor, gloo, MPI if it is here, and our algorithms.

    On one machine the hierarchical algorithm is the binomial tree.
    """
    ours = [name for name in table.names("all_reduce", n) if name != "hierarchical"]
    shared = [] if memory.missing() else [SHARED_MEMORY]
    return ["memcpy", "gloo", *([] if missing_for_mpi() else ["mpi"]), *shared, *ours]


def measure(
    n: int, rounds: int, sizes: list[int], widths: list[int], report: Callable[[str], None]
) -> dict:
    """The seconds of each round, as they go into the JSON: those of the slowest rank."""
    import torch

    from collectives import launch

    names, load = contenders(n), os.getloadavg()[0]
    if load > os.cpu_count() / 2:
        report(f"this machine is busy (load {load:.1f}): the times will be too long")
    report(f"all_reduce, {n} ranks, {rounds} rounds of {', '.join(names)} in turn")
    world = "mpi" if "mpi" in names else "by_hand"
    kind = {"timeout": _LIMIT, "diagnose": False}
    calls = launch(in_turn, n, args=(rounds, sizes, names), backend=world, **kind)
    report(f"a step of training, {n} ranks, {rounds} rounds of gloo and by_hand in turn")
    trained = launch(steps, n, args=(rounds, widths), backend="by_hand", **kind)
    return {
        "ranks": n,
        "rounds": rounds,
        "torch": torch.__version__.partition("+")[0],
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {load:.1f} before",
        "all_reduce": _by_round(calls),
        "step": _by_round(trained),
    }


def _by_round(by_rank: list[dict[tuple, list[float]]]) -> dict[str, dict[str, list[float]]]:
    found: dict[str, dict[str, list[float]]] = {}
    for what, name in by_rank[0]:
        rounds = zip(*(one[what, name] for one in by_rank), strict=True)
        found.setdefault(str(what), {})[name] = [float(f"{max(one):.4g}") for one in rounds]
    return found


def in_turn(
    rank: int, n: int, device, rounds: int, sizes: list[int], names: list[str]
) -> dict[tuple[int, str], list[float]]:
    """A step: the seconds of a call in each round, by size and contender."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)  # the ranks would take each other's cores
    groups = {name: _group(name) for name in names}
    found: dict[tuple[int, str], list[float]] = {}
    for size in sizes:
        x, copy = torch.empty(size // 4), torch.zeros(size // 4)
        for number in range(rounds + 1):  # the first round connects, and touches the memory
            for name, group in groups.items():
                _check(rank, n, x.fill_(1), name, group)
                dist.barrier(group)
                begin = time.perf_counter()
                for _ in range(SIZES.get(size, 5)):
                    if name == "memcpy":
                        copy.copy_(x)
                    else:
                        dist.all_reduce(x, group=group)
                seconds = (time.perf_counter() - begin) / SIZES.get(size, 5)
                if number:
                    found.setdefault((size, name), []).append(seconds)
    return found


def _group(name: str):
    import torch.distributed as dist

    from collectives.backends.by_hand.choice import Options

    if name in ("memcpy", "mpi"):
        return dist.group.WORLD
    if name == "gloo":
        return dist.new_group(backend="gloo")
    return dist.new_group(backend="by_hand", pg_options=Options(algorithm=name))


def _check(rank: int, n: int, ones, name: str, group) -> None:
    """Nobody is fast and wrong. Afterwards the tensor is full of zeros, which stay so."""
    import torch.distributed as dist

    dist.all_reduce(ones, group=group)
    if not (ones == n).all():
        raise RuntimeError(f"rank {rank}: {name} summed {n} ones to {ones[0]}")
    ones.zero_()


def steps(
    rank: int, n: int, device, rounds: int, widths: list[int]
) -> dict[tuple[str, str], list[float]]:
    """A step: the seconds of an optimizer step in each round, by kind and width, and by backend."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    groups = {"gloo": dist.new_group(backend="gloo"), "by_hand": dist.group.WORLD}
    found: dict[tuple[str, str], list[float]] = {}
    for kind in KINDS:
        for width in widths:
            models = {name: _model(kind, width, group) for name, group in groups.items()}
            x = torch.randn(8, width)
            for number in range(rounds + 1):
                for name, (model, optimizer) in models.items():
                    dist.barrier()
                    begin = time.perf_counter()
                    for _ in range(3):
                        optimizer.zero_grad()
                        model(x).square().mean().backward()
                        optimizer.step()
                    if number:
                        seconds = (time.perf_counter() - begin) / 3
                        found.setdefault((f"{kind}, width {width}", name), []).append(seconds)
    return found


def _model(kind: str, width: int, group):
    """Four linear layers, and their optimizer."""
    import torch
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

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
