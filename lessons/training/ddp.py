# %% [markdown]
"""
# ddp

DistributedDataParallel (DDP) is the data parallel training of PyTorch. It broadcasts the parameters
and averages the gradients, and your training loop stays as it is.

You have written all of this by hand, so you know what to expect: the same network. In this lesson
you check that, look at what DDP does otherwise, and take home a whole program that trains with it.

    python lessons/training/ddp.py
    torchrun --nproc-per-node 4 lessons/training/ddp.py
"""

# %%
from collectives import check, check_samples, check_training, counting, run
from data_parallel import batch_loss, network, shuffled, train
from data_parallel import on_my_shard as by_hand
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

# %% [markdown]
# ## The idea
#
# [data_parallel](../../notebooks/training/data_parallel.ipynb) has four parts: broadcast, shard,
# all_reduce, divide. DDP does three of them. Its constructor broadcasts the parameters and buffers
# of rank 0. During `backward()`, it divides the gradients by n and sums them over all ranks. You
# must still give each rank its own shard.
#
# DDP does not call `all_reduce` for each parameter. It copies gradients into long tensors, the
# buckets, and reduces a bucket as soon as all its gradients are there. `loss.backward()` starts
# this, through a hook on each parameter. The lesson
# [buckets](../../notebooks/training/buckets.ipynb) makes such buckets by hand.

# %% [markdown]
# ## The code
#
# `by_hand` is the program of data_parallel. With DDP the same step is `on_my_shard` alone.

# %% [markdown]
# **Predict first.** The network has four parameters. Our program calls `all_reduce` once for each
# of them in each step. How often does DDP call it?


# %%
def on_my_shard(model, images, labels):
    rank, n = dist.get_rank(), dist.get_world_size()
    return batch_loss(model, images[rank::n], labels[rank::n])


def ddp(rank, world_size, device):
    inside = network(seed=rank, device=device)
    model = DistributedDataParallel(inside)
    batches = shuffled().split(64 // world_size * world_size)[:-1]
    with counting() as counts:
        trained, _ = train(model, on_my_shard, batches, device)

    ours, _ = train(network(0, device), by_hand, batches, device)
    expected, _ = train(network(0, device), batch_loss, batches, device)
    check_training(trained, ours, "DDP and ours")
    check_training(trained, expected, "DDP and one process")
    check_samples(trained, expected, "DDP")
    calls = counts["c10d.all_reduce"].calls
    check(calls, len(batches), "calls of all_reduce")
    same = all(a is b for a, b in zip(inside.parameters(), model.parameters(), strict=True))
    check(same, True, "the parameters of DDP are those of the model inside")
    name = next(iter(model.state_dict()))
    return {"steps": len(batches), "all_reduce": calls, "first name": name}


# %%
if __name__ == "__main__":
    run(ddp)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Once in each step, so 28 times: all gradients together fit into the first bucket.
#
# </details>

# %% [markdown]
# ### The buckets and their order
#
# A communication hook is a function that DDP calls for each full bucket, in place of its own
# `all_reduce`. It returns a future, which will hold the averaged bucket. This hook does what DDP
# does, and notes which parameters each bucket holds. We ask for buckets of 1 kB, because the
# gradients of this network have only 19.

# %% [markdown]
# **Predict first.** The last layer of the network is `2`. Which parameters does the first bucket of
# the second step hold?

# %%
LAYERS = [["2.bias", "2.weight"], ["0.bias", "0.weight"]]


def order_of_buckets(rank, world_size, device):
    def note_and_average(found, bucket):
        found.append([names[parameter] for parameter in bucket.parameters()])
        work = dist.all_reduce(bucket.buffer() / world_size, async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    model = DistributedDataParallel(network(seed=rank, device=device), bucket_cap_mb=0.001)
    names = {parameter: name for name, parameter in model.module.named_parameters()}
    model.register_comm_hook(found := [], note_and_average)
    batches = shuffled().split(64 // world_size * world_size)[:2]
    trained, _ = train(model, on_my_shard, batches, device)

    expected, _ = train(network(0, device), batch_loss, batches, device)
    check_training(trained, expected, "DDP with a hook")
    check([sorted(names) for names in found[1:]], LAYERS, "the buckets of the second step")
    return {f"call {number}": names for number, names in enumerate(found, 1)}


# %%
if __name__ == "__main__":
    run(order_of_buckets)

# %% [markdown]
# <details><summary>Answer</summary>
#
# `2.bias` and `2.weight`: `backward()` begins with the last layer, so its gradients are there
# first. In the first step DDP does not know the order yet. It takes one bucket for all, notes in
# which order the gradients come, and then builds the buckets anew.
#
# </details>

# %% [markdown]
# ### The first bucket is small
#
# Without `bucket_cap_mb`, the first bucket is full at 1 MiB and the others at 25 MiB, so that the
# first `all_reduce` starts early (`torch/nn/parallel/distributed.py`: "First bucket optimization:
# use smaller size when using defaults to reduce latency for early-computed gradients"). This
# network has four layers of 1 MiB each.

# %% [markdown]
# **Predict first.** How many buckets does the second step reduce, and which is larger?


# %%
def first_bucket(rank, world_size, device):
    def note(found, bucket):
        found.append(bucket.buffer().nbytes)
        return allreduce_hook(None, bucket)

    layers = nn.Sequential(*[nn.Linear(512, 512, bias=False) for _ in range(4)])
    model = DistributedDataParallel(layers.to(device))
    model.register_comm_hook(found := [], note)
    for _ in range(2):
        model(torch.ones(1, 512, device=device)).sum().backward()
    check(found, [4 * 2**20, 2**20, 3 * 2**20], "bytes of the buckets")
    return {"first step": found[:1], "second step": found[1:]}


# %%
if __name__ == "__main__":
    run(first_bucket)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Two: the first has 1048576 bytes, the gradient of the last layer, and the second has 3145728. With
# one bucket of 4194304 bytes, as in the first step, nothing is on its way before `backward()` has
# ended.
#
# </details>

# %%
STEPS = [ddp, order_of_buckets, first_bucket]

# %% [markdown]
# ## A program to take home
#
# [train_ddp.py](../../examples/train_ddp.py) is a whole training: data, DDP, validation, and a
# checkpoint from which it continues when it was killed. It needs torch and scikit-learn, and
# nothing of this course:
#
# ```sh
# torchrun --nproc-per-node 2 examples/train_ddp.py
# ```
#
# Is it faster on two ranks? Not here: on two idle cores of a cloud machine, an epoch took 0.08 s on
# one rank and 0.14 s on two, with one thread for each rank (`python
# benchmarks/seconds_per_epoch.py`). The network is tiny, so computing its 24 steps takes less time
# than their calls do. More ranks pay off only if a step computes for longer than it communicates,
# and [faster](../../notebooks/training/faster.ipynb) measures where that begins.

# %% [markdown]
# ## The proof
#
# `check_training` compares the DDP model with our own program and with one process, on every rank.
# It ignores the `module.` with which DDP begins every name. `counting` counts the calls below DDP.

# %% [markdown]
# ## Make it wrong
#
# Predict what goes wrong. Make one change, run the steps, read what the proof says, and undo it.
#
# 1. **Every rank takes the same shard.** In `on_my_shard`, change `images[rank::n],
#    labels[rank::n]` to `images[::n], labels[::n]`. It says `rank 0/4: 2.bias.momentum_buffer:
#    relative error 2`.
# 2. **The model inside is called.** In `ddp`, change `trained, _ = train(model, on_my_shard` to
#    `trained, _ = train(model.module, on_my_shard`. It says `rank 1/4: 2.bias.momentum_buffer:
#    relative error 2`. Nothing is reduced, and there is no error.
# 3. **A hook that does not divide.** In `order_of_buckets`, change `bucket.buffer() / world_size`
#    to `bucket.buffer()`. It says `rank 0/4: 0.weight.momentum_buffer: relative error 3`.
# 4. **Large buckets.** In `order_of_buckets`, change `bucket_cap_mb=0.001` to `bucket_cap_mb=25`.
#    It says `[the buckets of the second step`. One bucket holds all four parameters.

# %% [markdown]
# ## Pitfalls
#
# - Call the DDP model, not `model.module`: only DDP's own `forward` prepares the reduction.
# - The keys of `model.state_dict()` begin with `module.`. Save `model.module.state_dict()`, which
#   also loads without DDP ([training](../../notebooks/mistakes/training.ipynb)).
# - The optimizer may be made before or after DDP: the parameters are the same. FSDP replaces them,
#   so there it must come after (`torch/distributed/fsdp/_fully_shard/_fully_shard.py`: "represents
#   the sharded parameters as :class:`DTensor` s").
# - DDP divides by the number of ranks. For unequal shards, weight the loss, as in
#   [shards](../../notebooks/training/shards.ipynb).

# %% [markdown]
# ## Read on
#
# - In the program to take home, [`main`](../../examples/train_ddp.py) has it: `ddp =
#   DistributedDataParallel(model)`.
# - S. Li and others, [*PyTorch Distributed*](https://arxiv.org/abs/2006.15704) (2020): on DDP.
# - The reference of
#   [DistributedDataParallel](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html).
#
# This is the end of the route. Next lesson: [shards](../../notebooks/training/shards.ipynb), which
# are not equally large.
