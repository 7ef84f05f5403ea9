"""An older torch has today's names where `collectives` is imported, in whichever order."""

import os

import pytest
import torch
import torch.distributed as dist
from older_torch import C10D, make_older
from our_backends import in_ranks
from processes import finished
from repository import SUPPORT

from collectives.backends import claims
from collectives.recording.record import recording
from collectives.semantics import torch_names

PROGRAM = """
from collectives import launch
import torch
import torch.distributed as dist
from torch.distributed import all_gather_single, reduce_scatter_single
from torch.distributed import _functional_collectives as functional

def step(rank, world_size, device):
    functional.reduce_scatter_single(torch.ones(2), "sum", 0, dist.group.WORLD)
    dist.all_gather_single(whole := torch.empty(2), torch.full((1,), float(rank)))
    return whole.tolist()

launched = launch(step, 2, record="calls")
print(launched[0], *(call.name for call in launched.calls if call.rank == 0))
"""

MAKES_OLDER = "import sys, older_torch; sys.meta_path.insert(0, older_torch.Finder('2.11'))"


@pytest.mark.skipif(
    not claims.holds(">=2.13", torch.__version__), reason="this torch lacks them itself"
)
def test_processes_of_an_older_torch_and_ranks_of_its_fork_server_have_them(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(MAKES_OLDER)
    (tmp_path / "program.py").write_text(PROGRAM)
    path = os.pathsep.join([str(tmp_path), str(SUPPORT)])
    done = finished(f"python {tmp_path / 'program.py'}", env={"PYTHONPATH": path})
    assert done.stdout == "[0.0, 1.0] all_gather_single\n", done.stderr


@in_ranks(2, "gloo")
def test_they_are_given_to_a_torch_that_is_there_and_noted_by_the_name_that_is_used(
    rank, world_size, device
):
    make_older(dist.distributed_c10d, C10D)
    assert not hasattr(dist, "all_gather_single")
    with recording() as calls:
        torch_names.give()
        dist.all_gather_single(whole := torch.empty(2), torch.full((1,), float(rank)))
        dist.reduce_scatter_tensor(part := torch.empty(1), whole)
    assert (whole.tolist(), part.item()) == ([0, 1], 2 * rank)
    assert [call.name for call in calls] == ["all_gather_single", "reduce_scatter_tensor"]


@in_ranks(2)
def test_our_process_groups_answer_to_the_methods_that_an_older_torch_calls(
    rank, world_size, device
):
    group, own = dist.group.WORLD, torch.tensor([1.0 + rank])
    both, mine = torch.empty(2), torch.empty(1)
    for call, arguments, out, expected in [
        ("_allgather_base", (both, own), both, [1, 2]),
        ("allgather_into_tensor_coalesced", ([both], [own]), both, [1, 2]),
        ("_reduce_scatter_base", (mine, torch.tensor([1.0, 2.0])), mine, [2 + 2 * rank]),
        ("reduce_scatter_tensor_coalesced", ([mine], [torch.ones(2)]), mine, [2]),
        ("alltoall_base", (both, torch.arange(2.0) + rank, [], []), both, [rank, rank + 1]),
    ]:
        out.zero_()
        getattr(group, call)(*arguments).wait()
        assert out.tolist() == expected, call
