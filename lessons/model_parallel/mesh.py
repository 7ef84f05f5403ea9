# %% [markdown]
"""
# mesh: DeviceMesh, two or three kinds of parallelism at once

Ranks in a grid train one model in two or three ways at once.

Your model needs eight GPUs just to fit, and you have sixty-four. So the eight should cut the model,
and eight such teams should share the batch. But which GPU belongs to which team, and which of them
should sit on one machine? In this lesson you give each rank coordinates, run data, pipeline and
tensor parallel training together, and count which order sends less from machine to machine.

    python lessons/model_parallel/mesh.py
    torchrun --nproc-per-node 8 lessons/model_parallel/mesh.py
"""

# %%
import logging
from collections import Counter
from functools import partial
from itertools import product
from math import prod

from collectives import check, check_samples, check_training, counting, needs, run
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import cross_entropy

from collectives.pictures.cables import Cables, Wiring
from costs import SMALL, Plan, costs
from measure import Activations, Sends, held
from model import LENGTH, LETTERS, PARAMETERS, WIDTH, network
from one_process import UPDATES, backward, train
from saving import sharded, whole
from sliced import cut
from slices import Slice, Slices

# %% [markdown]
# ## The idea
#
# Large trainings combine methods, because each one has a limit. [Tensor
# parallel](../../docs/glossary.md#tensor-parallel) ranks need a fast link, so they should be on one
# machine. A [pipeline](../../docs/glossary.md#pipeline-parallel) with many ranks has a long bubble.
# And data parallel ranks hold the whole model.
#
# To combine them, the ranks form a [mesh](../../docs/glossary.md#mesh) with a dimension for each
# method. A rank has a coordinate in each dimension, and its group in a dimension are the ranks that
# differ from it in this coordinate alone. Each call goes to one of these groups.
#
# ![Six ranks in two rows and three columns: each row is a tensor parallel group, each column a data
# parallel one](../../docs/ideas/mesh.svg)
#
# Six ranks are a mesh of 2 x 3 here. A row has the slices of one model, and a column has the copies
# of one slice.

# %% [markdown]
# **Predict first.** 4 ranks are a mesh of 2 x 1 x 2: data, pipeline and tensor. What are the
# coordinates of rank 2, and which ranks are in its data group?

# %%
NAMES = ("data", "pipeline", "tensor")


def coordinates(rank, world_size, device):
    tensor = 2 - world_size % 2
    shape = world_size // tensor, 1, tensor
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=NAMES)
    sums = {}
    for name in ("data", "tensor"):
        ranks = torch.tensor([rank], device=device)
        dist.all_reduce(ranks, group=mesh.get_group(name))
        sums[name] = ranks.item()
    row, column = divmod(rank, tensor)
    check(mesh.get_coordinate(), (row, 0, column), "coordinates")
    groups = [*range(column, world_size, tensor)], [*range(world_size)][row * tensor :][:tensor]
    check(list(sums.values()), [sum(one) for one in groups], "sums over the groups")
    found = dict(zip(NAMES, mesh.get_coordinate(), strict=True))
    return found | {"data group": groups[0], "tensor group": groups[1]}


# %%
if __name__ == "__main__":
    run(coordinates, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 1, 0 and 0. Its data group are ranks 0 and 2, because both hold the first slice of each weight.
#
# </details>

# %% [markdown]
# ## Three ways at once
#
# Once each rank has its groups, a step is the three methods one inside the other. A rank holds some
# layers, and a slice of their weights ([sliced.py](../../lessons/model_parallel/sliced.py)). In
# `on_the_mesh`
#
# - the data coordinate of a rank chooses its share of the batch,
# - the pipeline group passes on two micro-batches, in the order of GPipe,
# - the blocks call `all_reduce` in the tensor group, and the data group adds up the gradients.

# %% [markdown]
# **Predict first.** The lists are the bytes that a rank sends in a step: data, pipeline, tensor.
# Two data parallel ranks that hold the whole model send 276,992 bytes each, all gradients once. Why
# does a rank of a mesh send fewer in its data group?

# %%
MICRO_BATCHES = 2


def on_the_mesh(mesh, stage, letters, following):
    data, pipeline = mesh.get_group("data"), mesh.get_group("pipeline")
    d, p = dist.get_rank(data), dist.get_rank(pipeline)
    n, last = dist.get_world_size(data), dist.get_world_size(pipeline) - 1
    inputs, targets = (one.chunk(n)[d].chunk(MICRO_BATCHES) for one in (letters, following))
    passes = []
    for x, target in zip(inputs, targets, strict=True):
        if p > 0:
            x = torch.empty(*x.shape, WIDTH, dtype=torch.float64, device=x.device)
            dist.recv(x, group_src=p - 1, group=pipeline)
            x.requires_grad_()
        result = stage(x)
        if p < last:
            dist.send(result.detach(), group_dst=p + 1, group=pipeline)
        else:
            result = cross_entropy(result.flatten(0, 1), target.flatten()) / (MICRO_BATCHES * n)
        passes.append((x, result))
    for x, result in passes:
        gradient = None  # of the loss, it is 1
        if p < last:
            gradient = torch.empty_like(result)
            dist.recv(gradient, group_src=p + 1, group=pipeline)
        result.backward(gradient)
        if p > 0:
            dist.send(x.grad, group_dst=p - 1, group=pipeline)
    for parameter in stage.parameters():
        dist.all_reduce(parameter.grad, group=data)


def stage_of(model, mesh, optimizer=None):
    """What this rank holds: some of the layers, and slices of them."""
    p, count = mesh.get_local_rank("pipeline"), mesh["pipeline"].size()
    layers = model[p * 4 // count : (p + 1) * 4 // count]
    return cut(layers, mesh.get_group("tensor"), optimizer)


def train_on(mesh, device, kind=torch.nn.Sequential):
    """Train, prove it, and count what a step costs this rank: in all, and by receiver."""
    stage = stage_of(network(device), mesh)
    stage.__class__ = kind  # with another `forward`, if plan.py wants one
    with Sends() as sends, Activations(stage) as kept:
        trained = train(stage, device, partial(on_the_mesh, mesh))
    expected, optimizer = train(network(device), device)
    replica = mesh.get_local_rank("data")
    check_samples(trained, (expected, optimizer), f"{mesh.mesh_dim_names}", replica=replica)
    expected = stage_of(expected, mesh, optimizer), optimizer
    check_training(trained, expected, f"{mesh.mesh_dim_names}", same_bits=False)

    groups = {tuple(dist.get_process_group_ranks(mesh.get_group(name))): name for name in NAMES}
    by_name, by_receiver = dict.fromkeys(NAMES, 0), Counter()
    for (ranks, receiver), size in sends.bytes.items():
        by_name[groups[ranks]] += size // UPDATES
        by_receiver[receiver] += size // UPDATES
    found = held(*trained) | by_name | {"activations": kept.peak}
    # With what is hidden behind a view.
    found["parameters"] = sum(one.untyped_storage().nbytes() for one in stage.parameters())
    found["optimizer state"] -= 4 * len(list(stage.parameters()))  # Adam counts its steps
    return found, by_receiver


@needs(ranks=4, backend="gloo")
def three_ways(rank, world_size, device):
    found = {}
    for shape in product((1, 2), repeat=3):
        if prod(shape) == world_size:
            grid = init_device_mesh(device.type, shape, mesh_dim_names=NAMES)
            stage, plan = grid.get_local_rank("pipeline"), Plan(*shape, micro_batches=MICRO_BATCHES)
            both = train_on(grid, device)[0], costs(SMALL, plan, stage)
            sent, right = ([one[name] for name in (*NAMES, "parameters")] for one in both)
            check(sent, right, f"bytes sent in a step, and of parameters, {shape}")
            found[" x ".join(map(str, shape))] = sent[:3]
    return found


# %%
if __name__ == "__main__":
    run(three_ways, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Because each rank has only the gradients of its part of the model: 177664 bytes if it has half of
# the blocks' weights, 141824 or 135168 if it has half of the layers.
#
# </details>

# %% [markdown]
# ### Two ways by PyTorch
#
# You have seen both halves of PyTorch's way already: `parallelize_module` cuts the blocks
# ([tensor_parallel](../../notebooks/model_parallel/tensor_parallel.ipynb)), and `fully_shard`
# shards what is left ([fully_sharded](../../notebooks/model_parallel/fully_sharded.ipynb)). Each
# gets its own dimension of one mesh, and the order matters: cut first, then shard the slices.
# [train_sharded.py](../../examples/train_sharded.py) is a whole training that is made like this.

# %% [markdown]
# **Predict first.** The plan cuts the blocks only. Do all ranks of the mesh hold different parts of
# the weights of `up`, `down` and the head?


# %%
@needs(ranks=4)
def by_plan_and_shards(rank, world_size, device):
    # To gather a weight that is cut twice takes two calls, of which PyTorch warns.
    logging.getLogger("torch.distributed.tensor").setLevel(logging.ERROR)
    n = world_size // 2
    grid = init_device_mesh(device.type, (n, 2), mesh_dim_names=("data", "tensor"))
    d, t = grid.get_coordinate()
    plan = dict.fromkeys(("query", "key", "value", "up"), ColwiseParallel())
    plan |= dict.fromkeys(("out", "down"), RowwiseParallel())
    model = network(device)
    for block in model[1:3]:
        parallelize_module(block, grid["tensor"], plan)
    sharded(model, grid["data"])

    def on_my_share(model, letters, following):
        backward(model, letters[d::n], following[d::n])

    with counting() as counts:
        trained = train(model, device, on_my_share)
    expected = train(network(device), device)
    check_samples(trained, expected, "plan and shards", replica=d)
    check_training(whole(*trained, device), expected, "plan and shards")
    calls = {name.partition(".")[2]: count.calls // UPDATES for name, count in counts.items()}
    right = {"all_gather_single": 8, "reduce_scatter_single": 4, "all_reduce": 12}
    check(calls, right, "calls of a step, plan and shards")

    rows, slices = 4 * WIDTH // world_size, {}
    for name, module, first, shape in (  # where the part of this rank begins, and its shape
        ("up", "1.up", (rows * (n * t + d), 0), (rows, WIDTH)),
        ("down", "1.down", (WIDTH // n * d, 2 * WIDTH * t), (WIDTH // n, 2 * WIDTH)),
        ("head", "3.1", (LETTERS // n * d, 0), (LETTERS // n, WIDTH)),
    ):
        mine, right = (one.get_submodule(module).weight.data for one in (model, expected[0]))
        part = right.narrow(0, first[0], shape[0]).narrow(1, first[1], shape[1])
        check(mine.to_local(), part, f"my part of {name}", rtol=1e-6)
        slices[name] = Slice(first, shape, tuple(right.shape))
    return calls | {"parts": Slices(slices)}


# %%
if __name__ == "__main__":
    run(by_plan_and_shards, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Of `up` and `down`, yes: tensor and data cut them one after the other. But the head is not in the
# plan, so only the data dimension shards it, and the two ranks of a tensor group hold the same
# part. They also compute the same gradient for it, since both have seen the same batch.
#
# The calls are those of the two methods alone: `fully_shard` gathers 8 times and reduces 4 times in
# the data group, and the plan calls `all_reduce` 12 times in the tensor group.
#
# </details>

# %% [markdown]
# ## Which dimension belongs inside a machine?
#
# One dimension has to cross the slow cable. Suppose that two machines have half of the ranks each.
# The step makes the mesh twice, with `tensor` as the last dimension, whose neighbouring ranks are
# on one machine, and with `data` as the last one. It adds up the bytes from a rank on node0 to a
# rank on node1.

# %% [markdown]
# **Predict first.** Only one of the groups crosses the cable. Which order sends more through it?


# %%
@needs(ranks=4, backend="gloo")
def two_machines(rank, world_size, device):
    shape, half, panels = (2, world_size // 4, 2), world_size // 2, []
    for order in (NAMES, NAMES[::-1]):
        grid = init_device_mesh(device.type, shape, mesh_dim_names=order)
        every = [None] * world_size
        dist.all_gather_object(every, train_on(grid, device)[1])
        links = {(a, b): size for a, sent in enumerate(every) for b, size in sent.items() if size}
        cable = sum(size for (a, b), size in links.items() if a < half <= b)
        machines = range(half), range(half, world_size)
        through = f"{order[0]} groups"
        panels.append(Wiring(f"{order[-1]} inside", machines, list(links), cable / 1e6, through))
    slices = 2 * (12 * WIDTH**2 + 4 * WIDTH) // 2  # that a rank does not hold
    right = [2 * 8 * (PARAMETERS - slices), 2 * 8 * 8 * WIDTH * 4 * LENGTH]
    check([round(1e6 * one.megabytes) for one in panels], right, "bytes from machine to machine")
    return {"from node0 to node1": Cables([], panels)}


# %%
if __name__ == "__main__":
    run(two_machines, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# With data inside: 524 kB, because then the tensor groups cross. Their bytes grow with the batch,
# which is small here, while the 355 kB of gradients do not grow. And a rank waits for each call in
# its tensor group, while gradients may travel during `backward()`.
#
# </details>

# %%
STEPS = [coordinates, three_ways, by_plan_and_shards, two_machines]

# %% [markdown]
# ## The proof
#
# The slices of each rank's layers, and Adam's state for them, equal those of one process, to 1e-9,
# in each mesh. The bytes of each dimension, and of the slices in memory, are those that
# [costs.py](../../lessons/model_parallel/costs.py) computes from shapes.

# %% [markdown]
# ## Make it wrong
#
# Make one change, run the steps, read what the proof says, and undo it.
#
# 1. **The wrong dimension.** In `on_the_mesh`, change `dist.all_reduce(parameter.grad, group=data)`
#    to `dist.all_reduce(parameter.grad, group=mesh.get_group("tensor"))`. It says `relative error`.
# 2. **Sent twice.** In `on_the_mesh`, change `dist.all_reduce(parameter.grad, group=data)` to
#    `[dist.all_reduce(one, group=data) for one in (parameter.grad.clone(), parameter.grad)]`. It
#    says `[bytes sent in a step`. The model is right.
# 3. **The other order.** In `two_machines`, change `(NAMES, NAMES[::-1])` to
#    `(NAMES[::-1], NAMES)`. It says `[bytes from machine to machine`.
# 4. **A rank computes a share of its own.** In `by_plan_and_shards`, change `letters[d::n],
#    following[d::n]` to `letters[rank::world_size], following[rank::world_size]`. It says
#    `are not those of its replica`.

# %% [markdown]
# ## Write it yourself
#
# In your folder of [exercises](../../README.md#exercises):
#
# ```sh
# collectives practice norm_on_a_mesh
# ```

# %% [markdown]
# ## Read on
#
# Which mesh should 16,384 GPUs have? You cannot try them all. Next lesson:
# [plan](../../notebooks/model_parallel/plan.ipynb), which computes what a mesh costs.
