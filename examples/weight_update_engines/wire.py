"""What travels beside HTTP: a group of torch beside the world of either side, and buckets of bytes.

The private names are those that SGLang, OpenRLHF and slime copy from torch, because `new_group`
knows the ranks of one world only.
"""

import torch
import torch.distributed as dist
from model import as_bytes
from torch.distributed import distributed_c10d


def join_group(store, rank, world_size, name, backend, timeout):
    """Both sides must do this in the same way: the addresses of gloo lie under this prefix."""
    group, _ = distributed_c10d._new_process_group_helper(
        world_size,
        rank,
        [],
        dist.Backend(backend),
        dist.PrefixStore(name, store),
        group_name=name,
        timeout=timeout,
    )
    distributed_c10d._world.pg_group_ranks[group] = {one: one for one in range(world_size)}
    return group


def buckets(sizes, limit):
    """How many tensors are in each bucket, by vLLM's rule: it takes tensors until it has more than
    `limit` bytes. Where both sides cut, another limit on one of them is a hang.
    """
    counts, held = [], 0
    for size in sizes:
        if not counts or held > limit:
            counts, held = [*counts, 0], 0
        counts[-1] += 1
        held += size
    return counts


def size_of(dtype, shape):
    return torch.Size(shape).numel() * getattr(torch, dtype).itemsize  # no "torch." in dtype


def pack(tensors):
    return torch.cat([as_bytes(tensor) for tensor in tensors])


def unpack(packed, plan):
    """The tensors of a bucket. The plan has a name, a dtype and a shape for each."""
    tensors, start = [], 0
    for name, dtype, shape in plan:
        size, kind = size_of(dtype, shape), getattr(torch, dtype)
        if start % kind.itemsize:
            raise ValueError(f"Unaligned received tensor {name}: byte offset {start}")
        tensors.append((name, packed[start : start + size].view(kind).view(shape)))
        start += size
    return tensors
