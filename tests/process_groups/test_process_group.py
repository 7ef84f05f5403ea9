"""What our two process groups, MPI and by_hand, have in common."""

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from our_backends import in_ranks, on_both
from probed import probed

from collectives import launch
from collectives.backends import claims
from collectives.course import files
from collectives.matrix import claimed, selection
from collectives.matrix import run as matrix
from collectives.matrix.measured import Measured


@in_ranks(2)
def test_tensors_with_the_negative_or_conjugate_bit_are_refused(rank, world_size, device):
    """The values of these tensors are not what lies in their memory."""
    negative = torch.tensor([1 + 2j]).conj().imag
    conjugate = torch.tensor([1 + 2j]).conj()
    calls = [
        lambda: dist.all_reduce(negative),
        lambda: dist.broadcast(negative, 0),
        lambda: dist.reduce(conjugate, 0),
        lambda: dist.all_gather([torch.zeros(1), negative], torch.zeros(1)),
        lambda: dist.all_gather([torch.zeros(1), torch.zeros(1)], negative),
        lambda: dist.send(negative, 1 - rank),
        lambda: dist.recv(negative, 1 - rank),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"use resolve_(neg|conj)\(\)"):
            call()
    x = negative.resolve_neg()
    dist.all_reduce(x)
    assert x.tolist() == [-4.0]


@on_both
def test_gradients_go_through_functional_collectives(ours):
    """Autograd marks the output of a call, also while the call is still at work on it."""
    if reason := claims.refusal("gradients_through_calls", ours, "cpu"):
        pytest.skip(reason)
    step = files.load(files.find("training/functional")).gradients_through_calls
    assert len(launch(step, 3, backend=ours, timeout=60)) == 3


@in_ranks(2)
def test_a_wait_that_times_out_raises_on_its_rank_and_the_group_goes_on(rank, world_size, device):
    store = dist.distributed_c10d._get_default_store()
    x = torch.ones(1)
    if rank == 1:
        store.wait(["rank 0 has given up"], timedelta(seconds=60))
    work = dist.all_reduce(x, async_op=True)
    if rank == 0:
        with pytest.raises(dist.DistBackendError, match=r"all_reduce: Timed out after 0\.2 s"):
            work.wait(timedelta(seconds=0.2))
        store.set("rank 0 has given up", "")
    work.wait()
    dist.barrier()
    assert x.item() == 2.0


@in_ranks(2)
def test_a_call_fails_at_the_timeout_of_its_group(rank, world_size, device):
    group = dist.new_group(timeout=timedelta(seconds=1))
    if rank == 0:
        work = dist.all_reduce(torch.ones(1), async_op=True, group=group)
        with pytest.raises(dist.DistBackendError, match="Timed out after 1 s"):
            work.wait(timedelta(seconds=100))
        with pytest.raises(RuntimeError, match="cannot be used any more"):
            dist.barrier(group=group)
    dist.barrier()


@in_ranks(2)
def test_a_message_without_its_other_end_ends_at_the_time_limit_and_the_world_goes_on(
    rank, world_size, device
):
    for call in ("send", "recv"):
        group = dist.new_group(timeout=timedelta(seconds=0.5))
        words = rf"rank {rank}/2: {call}.* {1 - rank}: Timed out after"
        with pytest.raises(RuntimeError, match=words):
            getattr(dist, call)(torch.ones(1), 1 - rank, group=group)
        with pytest.raises(RuntimeError, match="this group cannot be used any more"):
            dist.barrier(group=group)
        dist.all_reduce(x := torch.ones(1))
        assert x.item() == 2.0


@in_ranks(2)
def test_a_message_of_another_length_than_its_tensor_is_an_error(rank, world_size, device):
    for length in (2, 4):
        if rank == 1:
            with pytest.raises(RuntimeError, match="rank 1/2: recv from rank 0 failed: "):
                dist.recv(torch.ones(length), src=0)
        elif dist.get_backend() == "mpi":  # it does not tell the sender
            dist.isend(torch.ones(3), dst=1)
        else:
            words = f"has 12 bytes, the tensor for it {4 * length}"
            with pytest.raises(RuntimeError, match=f"rank 0/2: send to rank 1 failed: .*{words}"):
                dist.send(torch.ones(3), dst=1)
        dist.barrier()


@in_ranks(4)
def test_messages_are_taken_by_tag_and_any_source_is_named_as_a_global_rank(
    rank, world_size, device
):
    """In a group whose ranks have other numbers than the world's."""
    group = dist.new_group([1, 2, 3])
    if rank == 3:
        dist.recv(y := torch.empty(2), src=1, tag=5, group=group)
        dist.recv(x := torch.empty(2), src=1, tag=4, group=group)
        source = dist.recv(z := torch.empty(1), group=group)
        assert (x.tolist(), y.tolist()) == ([4.0, 4.0], [5.0, 5.0])
        assert (source, z.item()) == (2, 1.0)
    if rank == 1:
        works = [dist.isend(torch.full((2,), float(tag)), 3, group, tag) for tag in (4, 5)]
        for work in works:
            work.wait()
    elif rank == 2:
        dist.send(torch.ones(1), dst=3, group=group)


@in_ranks(4)
def test_subgroups_do_not_disturb_each_other(rank, world_size, device):
    groups = [dist.new_group([a, b]) for a in range(4) for b in range(a + 1, 4)]
    mine = [group for group in groups if dist.get_rank(group) >= 0]
    tensors = [torch.full((100_000,), float(rank)) for _ in mine]
    pairs = zip(tensors, mine, strict=True)
    for work in [dist.all_reduce(x, group=group, async_op=True) for x, group in pairs]:
        work.wait()
    assert [x[-1].item() for x in tensors] == [rank + other for other in range(4) if other != rank]


@on_both
@pytest.mark.slow
def test_the_matrix_measures_what_is_claimed(ours):
    """Every dtype is reduced and broadcast, by every operation that it has."""
    chosen = selection.select([ours], ["all_reduce", "broadcast"])
    forms = ["send", "batch_isend_irecv", "all_gather", "reduce_scatter", "all_to_all"]
    forms += ["monitored_barrier", "split_group"]
    chosen += selection.select([ours], forms, quick=True)
    # Ours refuse before any message, so one world will do for all cells. Of a lazy tensor only one
    # rank knows: the other one would wait.
    together = [cell for cell in chosen if cell.variant != "lazy"]
    alone = [cell for cell in chosen if cell.variant == "lazy" and cell.dtype == "float32"]
    answers = list(matrix.measure(alone, timeout=60.0))
    first, second = launch(probed, 2, args=(together,), backend=ours, timeout=100)
    for cell, one, other in zip(together, first, second, strict=True):
        assert one[0] == other[0], (cell, one, other)
        answers.append(Measured.of(cell, cell.name, *one))
    assert {answer.state for answer in answers} == {"works", "refuses"}
    assert claimed.differences(matrix.record(answers)) == []
