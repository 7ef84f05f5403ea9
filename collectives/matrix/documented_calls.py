"""Calls that a docstring of torch.distributed describes and no form of the matrix makes.

They are steps for `launch`. Each returns whether the result is what the docstring says; its name
leads to the docstring in documented.toml.
"""

import torch
import torch.distributed as dist


def average_of_large_numbers(rank, world_size, device) -> bool:
    large = torch.tensor([60000.0], dtype=torch.float16, device=device)  # float16 ends at 65504
    dist.all_reduce(large, op=dist.ReduceOp.AVG)
    return large.item() == 60000.0


def send_to_oneself(rank, world_size, device) -> bool:
    got, own = torch.full((3,), -1.0, device=device), torch.full((3,), float(rank), device=device)
    works = [dist.isend(own, rank), dist.irecv(got, rank)]
    for work in works:
        work.wait()
    return torch.equal(got, own)


def receive_from_oneself(rank, world_size, device) -> bool:
    got, own = torch.full((3,), -1.0, device=device), torch.full((3,), float(rank), device=device)
    works = [dist.irecv(got, rank), dist.isend(own, rank)]
    for work in works:
        work.wait()
    return torch.equal(got, own)


def reduce_scatter_of_a_stack(rank, world_size, device) -> bool:
    whole = torch.arange(2.0 * world_size, device=device).reshape(world_size, 2)
    got = torch.full((2,), -1.0, device=device)
    dist.reduce_scatter_tensor(got, whole)
    return torch.equal(got, whole[rank] * world_size)


def all_gather_into_a_stack(rank, world_size, device) -> bool:
    got = torch.full((world_size, 2), -1.0, device=device)
    dist.all_gather_into_tensor(got, torch.full((2,), float(rank), device=device))
    return torch.equal(
        got,
        torch.arange(float(world_size), device=device).repeat_interleave(2).reshape(world_size, 2),
    )


def receive_objects_from_any(rank, world_size, device) -> bool:
    if rank:
        dist.send_object_list([rank, "a word"], dst=0, device=device)
        return True
    found = []
    for _ in range(world_size - 1):
        objects = [None, None]
        dist.recv_object_list(objects, src=None, device=device)
        found.append(objects)
    return sorted(found) == [[other, "a word"] for other in range(1, world_size)]


def gather_along_another_dimension(rank, world_size, device) -> bool:
    from torch.distributed import _functional_collectives as functional

    gather = getattr(functional, "all_gather_single", None) or functional.all_gather_tensor
    got = gather(torch.full((2, 1), float(rank), device=device), 1, dist.group.WORLD)
    return torch.equal(
        functional.wait_tensor(got), torch.arange(float(world_size), device=device).repeat(2, 1)
    )


def complex_into_integers(rank, world_size, device) -> bool:
    pieces = [torch.tensor([complex(rank, other)], device=device) for other in range(world_size)]
    got = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(world_size)]
    dist.all_to_all(got, pieces)
    return all(piece.item() == complex(other, rank) for other, piece in enumerate(got))
