"""Unmodified DDP and FSDP2 train on by_hand as they do on gloo."""

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.algorithms import Join
from torch.distributed.device_mesh import DeviceMesh

from collectives import launch
from collectives.backends import availability as backends

pytestmark = pytest.mark.skipif(
    backends.unavailable("by_hand", "cpu", 1) is not None, reason="by_hand needs Linux"
)


def losses(rank, world_size, device, wrap, steps):
    """50 steps on gloo and on by_hand, in the same ranks: a list of losses for each."""
    torch.set_num_threads(1)  # else the threads of all ranks fight for the cores
    found = []
    for group in (dist.new_group(backend="gloo"), dist.group.WORLD):
        torch.manual_seed(1)
        layers = [torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)]
        model = wrap(torch.nn.Sequential(*layers), group)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        generator = torch.Generator().manual_seed(10 + rank)
        found.append([])
        for _ in range(steps):
            x = torch.randn(16, 64, generator=generator)
            y = torch.randint(0, 10, (16,), generator=generator)
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found[-1].append(loss.item())
    return found


def with_ddp(model, group):
    return torch.nn.parallel.DistributedDataParallel(
        model, process_group=group, bucket_cap_mb=0.005
    )


def with_fsdp2(model, group):
    from torch.distributed.fsdp import fully_shard

    mesh = DeviceMesh.from_group(group, "cpu")
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


@pytest.mark.parametrize(
    "algorithm",
    [None, pytest.param("double_tree", marks=pytest.mark.slow)],
    ids=["chosen", "double_tree"],
)
@pytest.mark.parametrize("wrap", [with_ddp, with_fsdp2])
def test_losses_stay_within_a_millionth_of_gloos(wrap, algorithm, monkeypatch):
    if algorithm:
        monkeypatch.setenv("COLLECTIVES_ALGORITHM", algorithm)
    results = launch(losses, 3, args=(wrap, 50), backend="by_hand", timeout=100)
    for over_gloo, by_hand in results:
        assert by_hand == pytest.approx(over_gloo, abs=1e-6)
        assert by_hand[-1] != by_hand[0]


def joined(rank, world_size, device):
    """The parameters after uneven inputs, on gloo and on the world's backend: rank r has 1 + 2 r."""
    torch.set_num_threads(1)
    found = []
    for group in (dist.new_group(backend="gloo"), dist.group.WORLD):
        torch.manual_seed(1)
        model = torch.nn.Sequential(
            torch.nn.Linear(20, 30), torch.nn.Tanh(), torch.nn.Linear(30, 5)
        )
        ddp = torch.nn.parallel.DistributedDataParallel(
            model.double(), process_group=group, bucket_cap_mb=0.001
        )
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        torch.manual_seed(10 + rank)
        with Join([ddp]):
            for _ in range(1 + 2 * rank):
                optimizer.zero_grad()
                ddp(torch.randn(8, 20, dtype=torch.float64)).square().sum().backward()
                optimizer.step()
        found.append(torch.cat([parameter.detach().flatten() for parameter in ddp.parameters()]))
    return found


def test_join_lets_ranks_with_more_batches_go_on():
    results = launch(joined, 3, backend="by_hand", timeout=100)
    for over_gloo, by_hand in results:
        assert torch.allclose(by_hand, over_gloo, rtol=0, atol=1e-12)
        assert torch.equal(by_hand, results[0][1])


def test_ddp_goes_on_with_its_backward_pass_while_gradients_travel():
    """Rank 1 sends its last layer's gradients only after rank 0 has come to its first layer."""

    def fn(rank, world_size, device):
        store = dist.distributed_c10d._get_default_store()
        first, last = torch.nn.Linear(600, 600), torch.nn.Linear(600, 600)

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.last = first, last

            def forward(self, x):
                hidden = self.first(x)
                result = self.last(hidden)
                if rank == 0:
                    hidden.register_hook(lambda _: store.set(f"first layer, {step}", ""))
                else:
                    result.register_hook(lambda _: store.wait([f"first layer, {step}"]))
                return result

        ddp = torch.nn.parallel.DistributedDataParallel(Model(), bucket_cap_mb=1)
        # In the first step all gradients are one bucket. The hooks read `step`.
        for step in range(2):  # noqa: B007
            ddp(torch.ones(2, 600)).sum().backward()

    launch(fn, 2, backend="by_hand", timeout=30)


def test_a_callback_of_a_future_may_start_a_call_and_wait_for_it():
    def fn(rank, world_size, device):
        first = dist.all_reduce(torch.tensor([float(rank)]), async_op=True).get_future()

        def again(future):  # as PowerSGD's hook does
            return dist.all_reduce(future.value()[0], async_op=True).get_future().wait()[0]

        return first.then(again).wait().item()

    assert launch(fn, 2, backend="by_hand", timeout=30) == [2.0, 2.0]


@pytest.mark.slow
def test_powersgd_compresses_on_by_hand():
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    def fn(rank, world_size, device):
        torch.manual_seed(1)
        model = torch.nn.Linear(200, 200)
        ddp = torch.nn.parallel.DistributedDataParallel(model)
        state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2)
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        for _ in range(4):
            ddp(torch.ones(2, 200) * rank).sum().backward()
        return model.weight.grad.sum().item()

    results = launch(fn, 3, backend="by_hand", timeout=60)
    assert results == [results[0]] * 3
