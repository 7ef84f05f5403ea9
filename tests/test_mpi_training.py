"""Training with DistributedDataParallel over MPI gives the same gradients as over gloo."""

import copy

import pytest
import torch
import torch.distributed as dist
from test_by_hand_training import joined

from collectives import launch
from collectives.backends import availability as backends

pytestmark = pytest.mark.skipif(
    backends.missing_for_mpi() is not None, reason="needs the extra collectives[mpi]"
)


def over_both(fn, nproc, *args):
    return [launch(fn, nproc, args=args, backend=backend) for backend in ("mpi", "gloo")]


def gradients(rank, world_size, device, exact):
    torch.manual_seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(20, 30), torch.nn.ReLU(), torch.nn.Linear(30, 5)
    ).double()
    if exact:  # whole numbers: no order of addition can round
        for parameter in model.parameters():
            parameter.data = torch.randint(-2, 3, parameter.shape).double()
    ddp = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.001)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.5)
    torch.manual_seed(10 + rank)
    for _ in range(1 if exact else 3):
        x = (
            torch.randint(-3, 4, (8, 20)).double()
            if exact
            else torch.randn(8, 20, dtype=torch.float64)
        )
        optimizer.zero_grad()
        ddp(x).sum().backward()
        optimizer.step()
    return [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize(
    ("nproc", "exact"), [(2, False), (4, True)], ids=["two_ranks", "four_ranks_exact_sums"]
)
def test_ddp_gives_the_gradients_that_it_gives_over_gloo_bit_for_bit(nproc, exact):
    for mine, theirs in zip(*over_both(gradients, nproc, exact), strict=True):
        assert all(torch.equal(one, other) for one, other in zip(mine, theirs, strict=True))
        assert any(one.abs().max() > 0 for one in mine)


def float32_gradients(rank, world_size, device):
    """DDP's gradients, and this rank's own, which DDP divides before it adds them."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Tanh(), torch.nn.Linear(30, 5))
    alone, ddp = copy.deepcopy(model), torch.nn.parallel.DistributedDataParallel(model)
    torch.manual_seed(10 + rank)
    x = torch.randn(8, 20)
    for one in (alone, ddp):
        one(x).square().sum().backward()
    return [[parameter.grad for parameter in one.parameters()] for one in (model, alone)]


def sum_error(terms: int) -> float:
    """Whatever the order, a sum of n floats errs by at most this times the sum of their magnitudes.

    That is gamma(n - 1) = (n - 1) u / (1 - (n - 1) u), with u = 2**-24 for float32 (N. J. Higham,
    Accuracy and Stability of Numerical Algorithms, 2nd edition, section 4.2).
    """
    unit = 2.0**-24
    return (terms - 1) * unit / (1 - (terms - 1) * unit)


@pytest.mark.parametrize("nproc", [3, 4])
def test_random_float32_gradients_differ_from_gloos_by_no_more_than_rounding(nproc):
    over_mpi, over_gloo = over_both(float32_gradients, nproc)
    assert all(
        torch.equal(one, other)
        for mine, _ in over_mpi
        for one, other in zip(mine, over_mpi[0][0], strict=True)
    )
    for number, (mine, theirs) in enumerate(zip(over_mpi[0][0], over_gloo[0][0], strict=True)):
        magnitudes = sum(own[number].div(nproc).double().abs() for _, own in over_gloo)
        difference = (mine.double() - theirs.double()).abs()
        assert (
            difference <= 2 * sum_error(nproc) * magnitudes
        ).all()  # each of the two errs so much
        assert mine.abs().max() > 0


def test_join_lets_ranks_with_more_batches_go_on():
    results = launch(joined, 3, backend="mpi", timeout=100)
    for over_gloo, over_mpi in results:
        assert torch.allclose(over_mpi, over_gloo, rtol=0, atol=1e-12)
        assert torch.equal(over_mpi, results[0][1])


def two_ways(rank, world_size, device):
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

    ddp = torch.nn.parallel.DistributedDataParallel(Model(), bucket_cap_mb=1)
    # In the first step all gradients are one bucket. The hooks read `step`.
    for step in range(2):  # noqa: B007
        ddp(torch.ones(2, 600)).sum().backward()


def test_ddp_goes_on_with_its_backward_pass_while_gradients_travel():
    launch(two_ways, 2, backend="mpi", timeout=30)


def test_a_future_completes_with_its_call_and_runs_its_callbacks():
    def fn(rank, world_size, device):
        x = torch.tensor([float(rank)])
        first = dist.all_reduce(x, async_op=True).get_future()

        def again(
            future,
        ):  # runs where futures are completed, and waits for another one there, as PowerSGD does
            return dist.all_reduce(future.value()[0], async_op=True).get_future().wait()[0]

        assert first.then(again).wait().item() == 2.0  # (0 + 1) on both ranks, then 1 + 1
        if rank == 1:
            dist.send(torch.ones(3), dst=0)
        else:
            too_short = dist.irecv(torch.empty(1), src=1).get_future()
            with pytest.raises(RuntimeError, match="recv from rank 1 failed"):
                too_short.wait()

    launch(fn, 2, backend="mpi")
