"""Worlds and groups of by_hand, and what each of its algorithms has to do right."""

import torch
import torch.distributed as dist

from collectives import check, launch
from collectives.process_groups.by_hand import choice


def by_hand(fn, nproc=3, **options):
    return launch(fn, nproc, backend="by_hand", timeout=options.pop("timeout", 100), **options)


def group_of(algorithm: str | None, **options):
    return dist.new_group(backend="by_hand", pg_options=choice.Options(algorithm), **options)


def every_algorithm(rank, world_size, device, names):
    """Each algorithm of the table sums whole numbers, which no order of addition can round."""
    for name in names:
        group = group_of(name)
        for length in (0, 5, 100_001):
            x = torch.full((length,), rank + 1, dtype=torch.int64)
            dist.all_reduce(x, group=group)
            total = world_size * (world_size + 1) // 2
            check(x, torch.full((length,), total), f"all_reduce of {length} by {name}")
            pieces = [torch.full((length,), -1) for _ in range(world_size)]
            dist.all_gather(pieces, torch.full((length,), rank), group=group)
            expected = [torch.full((length,), source) for source in range(world_size)]
            check(pieces, expected, f"all_gather of {length} by {name}")
            y = torch.arange(length) + rank
            dist.broadcast(y, src=world_size - 1, group=group)
            check(y, torch.arange(length) + world_size - 1, f"broadcast of {length} by {name}")
            out = torch.full((length,), -1)
            inputs = [torch.full((length,), r + 1) for r in range(world_size)]
            dist.reduce_scatter(out, inputs, group=group)
            expected = torch.full((length,), (rank + 1) * world_size)
            check(out, expected, f"reduce_scatter of {length} by {name}")
