"""Of every call in the lessons: with another reduction, root or group, or left out, a step fails.

What no proof can notice is listed here with the reason.
"""

import pytest
from lesson_source import Source
from variants import AS_IT_IS, unnoticed, variants

from collectives.course import chapters

NAMES = [name for chapter in ("start", "calls") for name in chapters.read()[chapter].names]

SUM_ON_RANK_0 = "gloo leaves the whole sum on rank 0, whatever the root is"
RACE = "without the barrier the ranks race, and may win"
RETURNS = "it is shown that the call returns"
LISTED = {
    "no_shared_memory: dist.barrier(): left out": RACE,
    "what_is_left: dist.reduce(x, dst=0): another root": SUM_ON_RANK_0,
    "speed_of_the_job: dist.reduce(tokens, dst=0, op=dist.ReduceOp.SUM): another root": (
        SUM_ON_RANK_0
    ),
    "speed_of_the_job: dist.reduce(seconds, dst=0, op=dist.ReduceOp.MAX): another root": (
        SUM_ON_RANK_0
    ),
    "barrier_and_a_file: dist.barrier(): left out": RACE,
    "barrier_of_a_group: dist.barrier(group=group): left out": RETURNS,
    "monitored_barrier: dist.monitored_barrier(group=group): left out": RETURNS,
    "monitored_barrier: dist.monitored_barrier(group=group): no group": (
        "this group has all ranks, as the world has"
    ),
    "one_bucket: dist.broadcast(length, src=trainer, group=group): left out": (
        "every rank has the same length: the call guards against ranks that have not"
    ),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name != "gather" else ()) for name in NAMES],
)
def test_another_call_is_noticed(name):
    as_it_is, *blind = unnoticed(name, [AS_IT_IS, *variants(Source(name).text)])
    assert as_it_is == AS_IT_IS
    assert [one.what for one in blind if one.what not in LISTED] == []


def test_what_is_listed_is_tried():
    assert LISTED.keys() <= {one.what for name in NAMES for one in variants(Source(name).text)}


PROGRAM = """
import torch
import torch.distributed as dist
from collectives import check

def blind(rank, world_size, device):
    x = torch.tensor([7], device=device)
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    check(x, torch.tensor([7]), "all_reduce(MAX)")
    dist.broadcast(x, src=0)
    check(x, torch.tensor([7]), "broadcast")

def good(rank, world_size, device):
    x = torch.tensor([rank], device=device)
    work = dist.all_reduce(x, async_op=True)
    work.wait()
    check(x, torch.tensor([world_size * (world_size - 1) // 2]), "all_reduce(SUM)")

STEPS = [blind, good]
"""


def test_a_blind_proof_is_found(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    tried = variants(PROGRAM)
    reduction = "dist.all_reduce(x, op=dist.ReduceOp.MAX)"
    assert [one.what for one in unnoticed(str(path), tried)] == [
        f"blind: {reduction}: MIN for MAX",
        f"blind: {reduction}: left out",
        "blind: dist.broadcast(x, src=0): another root",
        "blind: dist.broadcast(x, src=0): left out",
    ]
    good = "good: dist.all_reduce(x, async_op=True)"
    assert [one.what for one in tried][4:] == [f"{good}: MAX for SUM", f"{good}: left out"]
