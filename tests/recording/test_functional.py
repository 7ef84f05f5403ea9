"""Functional collectives, as DTensor makes them: noted when called, and part of a compiled graph."""

import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

from collectives import launch
from collectives.recording.record import attached
from collectives.recording.sink import Memory


class Notes(Memory):
    """Keeps functional collectives, too, as the log of a program under diagnosis does."""

    functional = True


def _calls(rank, world_size, device):
    from torch.distributed import _functional_collectives as fc

    world, memory = dist.group.WORLD, Notes()
    with attached(memory):
        single = hasattr(fc, "all_gather_single")
        gather = fc.all_gather_single if single else fc.all_gather_tensor
        scatter = fc.reduce_scatter_single if single else fc.reduce_scatter_tensor
        fc.all_reduce(torch.ones(2, 3), "sum", world).sum()
        gather(torch.ones(2, 3), gather_dim=1, group=world).sum()
        scatter(torch.ones(2, 4), "sum", 0, world).sum()
        fc.broadcast(torch.ones(2), 1, [0, 1]).sum()
        dist.barrier()
    return [
        (
            call.name,
            call.op,
            call.peer,
            [tuple(kind.shape) for kind in call.tensors],
            call.torch_seq,
        )
        for call in memory.calls(rank)
    ]


def test_functional_collectives_are_noted_as_the_calls_that_they_amount_to():
    for found in launch(_calls, 2, backend="gloo"):
        *calls, barrier = found
        first = calls[0][-1]
        assert [call[:-1] for call in calls] == [
            ("all_reduce", "SUM", None, [(2, 3)]),
            ("all_gather_single", None, None, [(2, 6), (2, 3)]),
            ("reduce_scatter_single", "SUM", None, [(1, 4), (2, 4)]),
            ("broadcast", None, 1, [(2,)]),
        ]
        # torch's number goes through all of them.
        assert [call[-1] for call in found] == list(range(first, first + 5))
        assert barrier[0] == "barrier"


COMPILED = """
import torch, torch.distributed as dist
from torch.distributed import _functional_collectives as fc
from collectives.recording.record import attach
from test_functional import Notes
memory = Notes()
attach(memory)
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())

@torch.compile(fullgraph=True, backend="eager")
def step(x):
    return fc.all_reduce(x * 2, "sum", dist.group.WORLD) + 1

assert step(torch.ones(2)).tolist() == [3.0, 3.0]
assert fc.all_reduce(torch.ones(2), "sum", dist.group.WORLD).tolist() == [1.0, 1.0]
print([call.name for call in memory.calls(0)])
"""


@pytest.mark.slow  # imports the compiler
def test_a_whole_graph_holds_functional_collectives_while_calls_are_noted():
    folder = __file__.rpartition("/")[0]
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {folder!r})\n{COMPILED}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.stdout == "['init_process_group', 'all_reduce']\n", done.stderr
