"""What an all_reduce costs on gloo and on MPI: the same ranks, the same tensors, in turn."""

import statistics
import time
from collections.abc import Callable

from collectives.bench.timing import Row

RANKS = 4

# Bytes of the tensor, how many calls in a row are timed together, and the least ratio of gloo's
# time to MPI's.
SIZES = {"16 MiB": (2**24, 3, 2), "64 KiB": (2**16, 50, 10), "4 B": (4, 100, 10)}

# The time limit of all rounds together, in seconds.
_LIMIT = 600.0


def measure(rounds: int, report: Callable[[str], None]) -> list[Row]:
    """Time everything `rounds` times; call `report` with what is being done, in words."""
    from collectives import launch

    report(f"all_reduce, {RANKS} ranks, {rounds} rounds of gloo and mpi in turn")
    by_rank = launch(in_turn, RANKS, args=(rounds, SIZES), backend="mpi", timeout=_LIMIT)
    medians = {}
    for what in by_rank[0]:
        rounds_of_ranks = zip(*(seconds[what] for seconds in by_rank), strict=True)
        # A round takes as long as its slowest rank.
        medians[what] = statistics.median(map(max, rounds_of_ranks))
    return rows(medians)


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
    """A step: the seconds of a call in each round, by size and backend."""
    import torch
    import torch.distributed as dist

    groups = {"gloo": dist.new_group(backend="gloo"), "mpi": dist.group.WORLD}
    found: dict[tuple[str, str], list[float]] = {}
    for size, (length, calls, _) in sizes.items():
        x = torch.empty(length // 4)
        for _ in range(rounds):
            for backend, group in groups.items():
                dist.all_reduce(x.fill_(1), group=group)  # connects, and touches the memory
                if not (x == world_size).all():
                    raise RuntimeError(f"rank {rank}: {backend} summed {world_size} ones to {x[0]}")
                x.zero_()
                dist.barrier(group)
                begin = time.perf_counter()
                for _ in range(calls):
                    dist.all_reduce(x, group=group)
                found.setdefault((size, backend), []).append((time.perf_counter() - begin) / calls)
    return found
