"""What an all_reduce costs on gloo, on MPI, and with mpi4py alone: the same ranks and tensors, in
turn.
"""

import statistics
import time
from collections.abc import Callable

from collectives.bench.timing import Row

RANKS = 4

# Bytes of the tensor, how many calls in a row are timed together, and the least ratio of gloo's
# time to MPI's.
SIZES = {"16 MiB": (2**24, 3, 2), "64 KiB": (2**16, 50, 10), "4 B": (4, 100, 10)}

# What torch and our backend may add to mpi4py's own Iallreduce and Wait: half of its time, or so
# many seconds.
MOST_ADDED = 60e-6

# The time limit of all rounds together, in seconds.
_LIMIT = 600.0


def measure(rounds: int, report: Callable[[str], None]) -> list[Row]:
    """Time everything `rounds` times; call `report` with what is being done, in words."""
    from collectives import launch

    report(f"all_reduce, {RANKS} ranks, {rounds} rounds of gloo, mpi and mpi4py in turn")
    args, kind = (rounds, SIZES), {"timeout": _LIMIT, "diagnose": False}
    by_rank = launch(in_turn, RANKS, args=args, backend="mpi", **kind)
    medians = {}
    for what in by_rank[0]:
        rounds_of_ranks = zip(*(seconds[what] for seconds in by_rank), strict=True)
        # A round takes as long as its slowest rank.
        medians[what] = statistics.median(map(max, rounds_of_ranks))
    return rows(medians)


def rows(seconds: dict[tuple[str, str], float]) -> list[Row]:
    """The table, from the seconds of a call by size, and gloo, mpi or mpi4py."""
    table = []
    for size, (_, _, least) in SIZES.items():
        gloo, mpi, bare = (seconds[size, what] for what in ("gloo", "mpi", "mpi4py"))
        what = f"all_reduce, {RANKS} ranks, {size}"
        met = "yes" if gloo / mpi >= least else "no"
        table.append(
            Row(what, _text("gloo", gloo), _text("mpi", mpi), gloo / mpi, f">= {least}x", met)
        )
        met = "yes" if mpi <= 1.5 * bare or mpi <= bare + MOST_ADDED else "no"
        target = f"<= 1.5x or {1e6 * MOST_ADDED:.0f} µs more"
        table.append(Row(what, _text("mpi", mpi), _text("mpi4py", bare), mpi / bare, target, met))
    return table


def _text(name: str, seconds: float) -> str:
    return f"{name} {1000 * seconds:.3g} ms"


def in_turn(
    rank: int, world_size: int, device, rounds: int, sizes: dict[str, tuple[int, int, int]]
) -> dict[tuple[str, str], list[float]]:
    """A step: the seconds of a call in each round, by size, and gloo, mpi or mpi4py."""
    import torch
    import torch.distributed as dist

    from collectives.backends.mpi.library import MPI
    from collectives.backends.mpi.types import address

    gloo, world = dist.new_group(backend="gloo"), dist.group.WORLD

    def bare(x):
        message = [address(x), x.numel(), MPI.FLOAT]
        world.comm.Iallreduce(MPI.IN_PLACE, message, MPI.SUM).Wait()

    reductions = {
        "gloo": lambda x: dist.all_reduce(x, group=gloo),
        "mpi": dist.all_reduce,
        "mpi4py": bare,
    }
    found: dict[tuple[str, str], list[float]] = {}
    for size, (length, calls, _) in sizes.items():
        x = torch.empty(length // 4)
        for _ in range(rounds):
            for name, reduce in reductions.items():
                reduce(x.fill_(1))  # connects, and touches the memory
                if not (x == world_size).all():
                    raise RuntimeError(f"rank {rank}: {name} summed {world_size} ones to {x[0]}")
                x.zero_()
                dist.barrier(gloo if name == "gloo" else world)
                begin = time.perf_counter()
                for _ in range(calls):
                    reduce(x)
                found.setdefault((size, name), []).append((time.perf_counter() - begin) / calls)
    return found
