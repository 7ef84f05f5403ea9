"""Correct programs that train a model. Diagnose must not report any of them."""

import shutil
import tempfile

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def _model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))


def _step(model, optimizer=None, rows=2):
    model(torch.randn(rows, 4)).sum().backward()
    if optimizer is not None:
        optimizer.step()
        optimizer.zero_grad()


def ddp(rank, n):
    model = DistributedDataParallel(torch.nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(20):
        optimizer.zero_grad()
        model(torch.randn(4, 3)).sum().backward()
        optimizer.step()
    loss = torch.ones(1)
    dist.all_reduce(loss)


def accumulates_gradients(rank, n):
    model = DistributedDataParallel(_model())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        with model.no_sync():
            for _ in range(3 + rank):  # each rank has its own number of small batches
                _step(model)
        _step(model, optimizer)


def uses_other_parameters(rank, n):
    """Each rank takes another branch of the model."""

    class Branches(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.branches = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(n))

        def forward(self, x):
            return self.branches[rank](x)

    model = DistributedDataParallel(Branches(), find_unused_parameters=True)
    for _ in range(3):
        _step(model)


def joins_with_uneven_inputs(rank, n):
    model = DistributedDataParallel(_model())
    with model.join():
        for _ in range(3 + rank):
            _step(model)
    dist.barrier()


def communicates_in_a_hook(rank, n):
    """Each gradient is reduced as soon as it is ready; all are waited for at the end."""
    model, works = _model(), []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda one: works.append(dist.all_reduce(one.grad, async_op=True))
        )
    for _ in range(3):
        _step(model)
        while works:
            works.pop().wait()


def shards_the_optimizer(rank, n):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DistributedDataParallel(_model())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.1)
    for _ in range(3):
        _step(model, optimizer)
    optimizer.consolidate_state_dict(0)


def shards_the_model(rank, n):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model, mesh = _model(), init_device_mesh("cpu", (n,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        _step(model, optimizer, rows=1 + rank)


def splits_tensors_over_a_mesh(rank, n):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (n // 2, 2), mesh_dim_names=("data", "tensor"))
    model = parallelize_module(
        _model(), mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()}
    )
    _step(model)
    both = distribute_tensor(torch.arange(16.0).reshape(4, 4), mesh, [Shard(0), Shard(1)])
    assert (both @ both).redistribute(mesh, [Replicate(), Replicate()]).to_local().shape == (4, 4)
    dist.all_reduce(torch.ones(2), group=mesh.get_group("data"))


def passes_through_stages(rank, n):
    """Each rank holds one layer; small batches go forward and backward between them."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    stage = PipelineStage(torch.nn.Linear(4, 4), rank, n, torch.device("cpu"))
    schedule = Schedule1F1B(stage, 2 * n, loss_fn=torch.nn.functional.mse_loss)
    for _ in range(2):
        batch = [torch.randn(4 * n, 4)] if rank == 0 else []
        schedule.step(*batch, **({"target": torch.randn(4 * n, 4)} if rank == n - 1 else {}))


def saves_and_loads(rank, n):
    import torch.distributed.checkpoint as checkpoint

    places = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(places)
    state = {"model": _model().state_dict(), "step": 3}
    checkpoint.save(state, checkpoint_id=places[0])
    checkpoint.load(state, checkpoint_id=places[0])
    other = dist.new_group()  # the background thread's own
    checkpoint.async_save(state, checkpoint_id=f"{places[0]}/later", process_group=other).result()
    dist.barrier()
    if rank == 0:
        shutil.rmtree(places[0])


def loads_data_in_workers(rank, n):
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    data = TensorDataset(torch.arange(12.0).reshape(12, 1))
    for _, batch in zip(
        range(3), DataLoader(data, 1, sampler=DistributedSampler(data), num_workers=2), strict=False
    ):
        dist.all_reduce(batch[0])


def differentiates_through(rank, n):
    import torch.distributed.nn.functional as differentiable

    x = torch.ones(2, requires_grad=True)
    y = differentiable.all_reduce(x * (rank + 1))
    sum(differentiable.all_gather(y)).sum().backward()
