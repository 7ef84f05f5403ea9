"""Unmodified DDP and FSDP2 train on our process groups as they do on gloo."""

import contextlib

import pytest
import torch
import torch.distributed as dist
from ddp_losses import losses, with_ddp
from our_backends import in_ranks, needs_by_hand, on_both
from torch.distributed.algorithms import Join
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from collectives import launch


def with_fsdp2(model, group):
    from torch.distributed.fsdp import fully_shard

    mesh = DeviceMesh.from_group(group, "cpu")
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


@on_both
@pytest.mark.parametrize("wrap", [with_ddp, with_fsdp2])
def test_losses_stay_within_a_millionth_of_gloos(ours, wrap):
    options = {"backend": ours, "timeout": 100, "diagnose": True}  # it suspects nobody
    for over_gloo, found in launch(losses, 3, args=(wrap, 20), **options):
        assert found == pytest.approx(over_gloo, abs=1e-6)
        assert found[-1] != found[0]


def joined(rank, world_size, device):
    """The parameters after uneven inputs, on gloo and on the world's backend: rank r has 1 + 2 r."""
    found = []
    for group in (dist.new_group(backend="gloo"), dist.group.WORLD):
        torch.manual_seed(1)
        layers = [torch.nn.Linear(20, 30), torch.nn.Tanh(), torch.nn.Linear(30, 5)]
        model = torch.nn.Sequential(*layers).double()
        ddp = DistributedDataParallel(model, process_group=group, bucket_cap_mb=0.001)
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        torch.manual_seed(10 + rank)
        with Join([ddp]):
            for _ in range(1 + 2 * rank):
                optimizer.zero_grad()
                ddp(torch.randn(8, 20, dtype=torch.float64)).square().sum().backward()
                optimizer.step()
        found.append(torch.cat([parameter.detach().flatten() for parameter in ddp.parameters()]))
    return found


@on_both
def test_join_lets_ranks_with_more_batches_go_on(ours):
    results = launch(joined, 3, backend=ours, timeout=100)
    for over_gloo, parameters in results:
        assert torch.allclose(parameters, over_gloo, rtol=0, atol=1e-12)
        assert torch.equal(parameters, results[0][1])


@in_ranks(2, timeout=30)
def test_ddp_goes_on_with_its_backward_pass_while_gradients_travel(rank, world_size, device):
    """Rank 1 sends its last layer's gradients only after rank 0 has come to its first layer."""
    store = dist.distributed_c10d._get_default_store()
    first, last = torch.nn.Linear(600, 600), torch.nn.Linear(600, 600)  # more than a bucket each

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

    ddp = DistributedDataParallel(Model(), bucket_cap_mb=1)
    # In the first step all gradients are one bucket. The hooks read `step`.
    for step in range(2):  # noqa: B007
        ddp(torch.ones(2, 600)).sum().backward()


@in_ranks(2, timeout=30)
def test_a_future_completes_with_its_call_and_its_callback_may_wait_for_another(
    rank, world_size, device
):
    first = dist.all_reduce(torch.tensor([float(rank)]), async_op=True).get_future()

    def again(future):  # as PowerSGD's hook does
        return dist.all_reduce(future.value()[0], async_op=True).get_future().wait()[0]

    found = first.then(again).wait().item()
    if rank == 1:
        with contextlib.suppress(RuntimeError):  # on by_hand it fails here too
            dist.send(torch.ones(3), dst=0)
    else:
        too_short = dist.irecv(torch.empty(1), src=1).get_future()
        with pytest.raises(RuntimeError, match="recv from rank 1 failed"):
            too_short.wait()
    assert found == 2.0


def with_powersgd(rank, world_size, device):
    """Its calls come from callbacks, in another order than that of the buckets."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    torch.manual_seed(1)
    layers = [torch.nn.Linear(200, 200) for _ in range(4)]
    ddp = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.2)
    state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2)
    ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    for _ in range(6):
        ddp(torch.randn(2, 200)).sum().backward()
    return [layer.weight.grad.sum().item() for layer in layers]


@pytest.mark.slow
@needs_by_hand
def test_powersgd_compresses_several_buckets_on_by_hand():
    results = launch(with_powersgd, 3, backend="by_hand", timeout=60)
    assert results == [results[0]] * 3
