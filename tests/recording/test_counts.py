"""Calls, bytes and messages are counted from below, against numbers that are known otherwise."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from collectives import counting, launch
from collectives.process_groups.by_hand.links import SocketLinks

FLOATS = 1200  # 4,800 bytes, which 3 and 4 ranks share evenly


def ddp_step(rank, world_size, device):
    """The third step: before that, DDP also sends what it has to send once."""
    model = nn.Sequential(nn.Linear(10, 20), nn.Linear(20, 5))
    model = DistributedDataParallel(model, bucket_cap_mb=25)
    for _ in range(2):
        model(torch.ones(2, 10)).sum().backward()
    with counting() as counts:
        model(torch.ones(2, 10)).sum().backward()
    return dict(counts)


@pytest.mark.parametrize("backend", ["gloo", "by_hand"])
def test_what_ddp_sends_from_c_plus_plus_is_counted(backend, monkeypatch):
    """Its gradients fit into one bucket: (10 + 1) * 20 + (20 + 1) * 5 numbers of 4 bytes."""
    monkeypatch.setenv("COLLECTIVES_ALGORITHM", "ring")
    for found in launch(ddp_step, 2, backend=backend):
        assert found.pop("by_hand.message", (2, 1300))[1] == 1300  # 2(n-1)/n of the bytes
        assert found == {"c10d.all_reduce": (1, 1300)}


def calls(rank, world_size, device):
    part, whole = torch.ones(FLOATS // world_size), torch.ones(FLOATS)
    with counting() as counts:
        dist.all_gather_single(whole, part)
        dist.reduce_scatter_single(part, whole)
        dist.all_gather(list(torch.zeros(world_size, len(part)).unbind()), part)
        dist.broadcast(whole, src=0)
        if rank == 0:
            dist.send(part, dst=1)
        if rank == 1:
            dist.recv(part, src=0)
        dist.barrier()
    return counts


@pytest.mark.parametrize("backend", ["gloo", "by_hand"])
def test_the_bytes_of_a_call_are_those_of_the_full_array(backend):
    for rank, counts in enumerate(launch(calls, 3, backend=backend)):
        counts = {name: count for name, count in counts.items() if name != "by_hand.message"}
        extra = [{"c10d.send": (1, 1600)}, {"c10d.recv": (1, 1600)}, {}][rank]
        assert counts == extra | {
            "c10d.all_gather_single": (1, 4800),
            "c10d.reduce_scatter_single": (1, 4800),
            "c10d.all_gather": (1, 4800),
            "c10d.broadcast": (1, 4800),
            "c10d.barrier": (1, 0),
        }


def functional_calls(rank, world_size, device):
    with counting() as counts:
        whole = functional.all_reduce(torch.ones(FLOATS), "sum", dist.group.WORLD).wait()
        part = functional.reduce_scatter_single(whole, "sum", 0, dist.group.WORLD).wait()
        whole = functional.all_gather_single(part, 0, dist.group.WORLD).wait()
    return whole.sum().item(), counts


@pytest.mark.parametrize("backend", ["gloo", "by_hand"])
def test_a_functional_collective_is_counted_once(backend):
    for total, counts in launch(functional_calls, 3, backend=backend):
        assert total == 9.0 * FLOATS
        counts = {name: count for name, count in counts.items() if name != "by_hand.message"}
        names = ("all_reduce", "reduce_scatter_single", "all_gather_single")
        assert counts == {f"_c10d_functional.{name}": (1, 4800) for name in names}


def root_of_a_sum(rank, world_size, device):
    from torch.distributed.tensor import DTensor, Shard  # it takes a second

    mesh = init_device_mesh(device.type, (world_size,))
    x = DTensor.from_local(torch.ones(FLOATS), mesh, [Shard(0)])
    with counting() as counts:
        root = x.sum().sqrt()  # the root of a sum is not the sum of roots
    return root.to_local().item() ** 2, dict(counts)


def test_what_a_dtensor_calls_inside_an_operator_is_counted():
    for total, counts in launch(root_of_a_sum, 3, backend="gloo"):
        assert total == pytest.approx(3 * FLOATS)
        assert counts == {"_c10d_functional.all_reduce": (1, 4)}


def reduced(rank, world_size, device):
    with counting() as counts:
        dist.all_reduce(torch.ones(FLOATS))
    return counts


def reduced_with_each_message_sent_twice(rank, world_size, device):
    def twice(*arguments):
        real(*arguments)
        real(*arguments)

    real, SocketLinks.exchange = SocketLinks.exchange, twice
    try:
        return reduced(rank, world_size, device)
    finally:
        SocketLinks.exchange = real


@pytest.mark.parametrize("n", [3, 4])
@pytest.mark.parametrize(
    ("step", "times"), [(reduced, 1), (reduced_with_each_message_sent_twice, 2)]
)
def test_a_ring_sends_two_messages_to_each_other_rank(n, step, times, monkeypatch):
    monkeypatch.setenv("COLLECTIVES_ALGORITHM", "ring")
    for counts in launch(step, n, backend="by_hand"):
        count = times * 2 * (n - 1)
        assert counts["by_hand.message"] == (count, count * FLOATS * 4 // n)
        assert counts["c10d.all_reduce"] == (1, FLOATS * 4)


def nested(rank, world_size, device):
    x = torch.ones(1)
    with counting() as outer:
        dist.all_reduce(x)
        with counting() as inner:
            dist.all_reduce(x)
    dist.all_reduce(x)
    return outer.total(), inner.total("c10d"), inner.total("by_hand"), inner["c10d.reduce"]


def test_blocks_may_be_nested_and_what_never_happened_counts_nothing():
    assert launch(nested, 1, backend="gloo") == [((2, 8), (1, 4), (0, 0), (0, 0))]
