"""What an all_reduce costs on gloo and on MPI: the same ranks, the same tensors, in turn."""

import statistics
import time
from collections.abc import Callable

from collectives.bench.timing import Row

RANKS = 4

# Bytes of the tensor, calls in a row that are timed as one, and how many times faster than gloo MPI is to be.
SIZES = {"16 MiB": (2**24, 3, 2), "64 KiB": (2**16, 50, 10), "4 B": (4, 100, 10)}

# All rounds together take no longer than this, in seconds, on any machine worth measuring.
_LIMIT = 600.0


def measure(rounds: int, tell: Callable[[str], None]) -> list[Row]:
    """Time everything `rounds` times; `tell` hears, in words, what is being done."""
    from collectives import launch

    tell(f"all_reduce, {RANKS} ranks, {rounds} rounds of gloo and mpi in turn")
    of_ranks = launch(in_turn, RANKS, args=(rounds, SIZES), backend="mpi", timeout=_LIMIT)
    # A round has taken as long as its slowest rank.
    found = {
        what: [max(seconds) for seconds in zip(*(one[what] for one in of_ranks), strict=True)]
        for what in of_ranks[0]
    }
    return rows({what: statistics.median(seconds) for what, seconds in found.items()})


def rows(seconds: dict[tuple[str, str], float]) -> list[Row]:
    """The table, from the seconds of a call by size and backend."""
    table = []
    for size, (_, _, least) in SIZES.items():
        gloo, mpi = (seconds[size, backend] for backend in ("gloo", "mpi"))
        shown = [f"{name} {1000 * value:.3g} ms" for name, value in (("gloo", gloo), ("mpi", mpi))]
        met = "yes" if gloo / mpi >= least else "no"
        table.append(
            Row(f"all_reduce, {RANKS} ranks, {size}", *shown, gloo / mpi, f">= {least}x", met)
        )
    return table


def in_turn(
    rank: int, world_size: int, device, rounds: int, sizes: dict[str, tuple[int, int, int]]
) -> dict[tuple[str, str], list[float]]:
    """In a rank: the seconds of a call in each round, by size and backend."""
    import torch
    import torch.distributed as dist

    groups = {"gloo": dist.new_group(backend="gloo"), "mpi": dist.group.WORLD}
    found: dict[tuple[str, str], list[float]] = {}
    for size, (length, calls, _) in sizes.items():
        x = torch.empty(length // 4)
        for _ in range(rounds):
            for backend, group in groups.items():
                dist.all_reduce(x.fill_(1), group=group)  # connects, and warms the memory
                if not (x == world_size).all():
                    raise RuntimeError(f"rank {rank}: {backend} summed {world_size} ones to {x[0]}")
                x.zero_()
                dist.barrier(group)
                begin = time.perf_counter()
                for _ in range(calls):
                    dist.all_reduce(x, group=group)
                found.setdefault((size, backend), []).append((time.perf_counter() - begin) / calls)
    return found
