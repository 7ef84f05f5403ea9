# %% [markdown]
"""
# ddp

DistributedDataParallel (DDP) is the data parallel training of PyTorch. It broadcasts the parameters
and averages the gradients, and your training loop stays as it is.

You will see that it trains the same model as our own program, and in which buckets and in which
order it reduces the gradients.

    python lessons/training/ddp.py
    torchrun --nproc-per-node 4 lessons/training/ddp.py
"""

# %%
from collectives import check_training
from collectives.lesson import Curve, digits, run
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

# %% [markdown]
# ## The idea
#
# [data_parallel](../../notebooks/training/data_parallel.ipynb) has four parts: broadcast, shard,
# all_reduce, divide. DDP does three of them. Its constructor broadcasts the parameters and buffers
# of rank 0. During `backward()`, it sums the gradients of all ranks and divides them by n. You must
# still give each rank its own shard.
#
# DDP does not call `all_reduce` for each parameter. As in
# [buckets](../../notebooks/training/buckets.ipynb), it copies gradients into buckets and reduces a
# bucket as soon as all its gradients are there. Its buckets have 25 MB. `loss.backward()` starts
# this, through a hook on each parameter. The loss function itself reduces nothing.

# %% [markdown]
# ## The code
#
# `by_hand` is our own program. With DDP the same step is `on_my_shard` alone.


# %%
def network(seed, device):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).double().to(device)


def shuffled():
    return torch.randperm(1797, generator=torch.Generator().manual_seed(0))


def train(model, backward, batches, device):
    torch.set_num_threads(1)  # the ranks of one machine share its cores
    images, labels = digits(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        losses.append(backward(model, images[batch], labels[batch]))
        optimizer.step()
    return (model, optimizer), Curve(losses)


def batch_loss(model, images, labels):
    loss = cross_entropy(model(images), labels)
    loss.backward()
    return loss.item()


# %%
def on_my_shard(model, images, labels):
    rank, n = dist.get_rank(), dist.get_world_size()
    return batch_loss(model, images[rank::n], labels[rank::n])


def by_hand(model, images, labels):
    loss = on_my_shard(model, images, labels)
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()
    return loss


# %%
def ddp(rank, world_size, device):
    model = DistributedDataParallel(network(seed=rank, device=device))
    batches = shuffled().split(64 // world_size * world_size)[:-1]
    trained, losses = train(model, on_my_shard, batches, device)

    ours, _ = train(network(0, device), by_hand, batches, device)
    expected, _ = train(network(0, device), batch_loss, batches, device)
    check_training(trained, ours, "DDP and ours")
    check_training(trained, expected, "DDP and one process")
    return {"loss": losses}


# %% [markdown]
# **Predict first.** Our program calls `all_reduce` 4 times in each step. How often does DDP, with
# buckets of 25 MB? The network has 2,410 parameters of 8 bytes. Write the number down.

# %%
if __name__ == "__main__":
    run(ddp)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Once: all gradients together have 19 kB, and fit into one bucket. The picture shows the same
# losses as that of data_parallel.
#
# </details>

# %% [markdown]
# ### The buckets and their order
#
# A communication hook is a function that DDP calls for each full bucket, in place of its own
# `all_reduce`. It returns a future: an object that will hold the averaged bucket when the
# `all_reduce` has ended. This hook does what DDP does, and notes which parameters each bucket
# holds. The network has only 19 kB of gradients, so we ask for buckets of 1 kB.


# %%
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
    return {f"call {number}": names for number, names in enumerate(found, 1)}


# %% [markdown]
# **Predict first.** Two steps are trained. The last layer of the network is `2`. Which parameters
# does the first bucket of the second step hold? Write their names down.

# %%
if __name__ == "__main__":
    run(order_of_buckets)

# %% [markdown]
# <details><summary>Answer</summary>
#
# `2.bias` and `2.weight`: `backward()` begins with the last layer, so its gradients are there
# first. In the first step DDP does not know the order yet. It takes one bucket for all, notes in
# which order the gradients come, and then builds the buckets anew. The second bucket is reduced
# when the gradients of the first layer have come.
#
# </details>

# %%
STEPS = [ddp, order_of_buckets]

# %% [markdown]
# ## The proof
#
# `check_training` compares the DDP model with our own program and with one process, on every rank.
# It ignores the `module.` with which DDP begins every name.

# %% [markdown]
# ## Make it wrong
#
# Each of these is one change. Make it, run the steps, read what the proof says, and undo it.
#
# 1. **Every rank takes the same shard.** In `on_my_shard`, change `images[rank::n],
#    labels[rank::n]` to `images[::n], labels[::n]`. It says `rank 0/4: 2.bias.momentum_buffer:
#    relative error 2`.
# 2. **The model inside is called.** In `ddp`, change `trained, losses = train(model,` to `trained,
#    losses = train(model.module,`. It says `rank 1/4: 2.bias.momentum_buffer: relative error 2`.
#    Nothing is reduced, and there is no error.
# 3. **A hook that does not divide.** In `order_of_buckets`, change `bucket.buffer() / world_size`
#    to `bucket.buffer()`. It says `rank 0/4: 0.weight.momentum_buffer: relative error 3`.

# %% [markdown]
# ## Pitfalls
#
# - Call the DDP model, not `model.module`: only DDP's own `forward` prepares the reduction.
# - The keys of `model.state_dict()` begin with `module.`. Save `model.module.state_dict()`, which
#   also loads without DDP. The mistake is shown in
#   [training](../../notebooks/mistakes/training.ipynb).
# - The optimizer may be made before or after DDP: DDP wraps the same parameters. (FSDP replaces
#   them, so there it must come after (documented).)
# - If every rank takes the whole batch, the result is right, and nothing is gained. No comparison
#   of parameters notices that.
# - DDP divides by the number of ranks, whatever the shards are. For unequal shards, weight the
#   loss, as in data_parallel.

# %% [markdown]
# ## Write it yourself
#
# Make the optimizer before the model is wrapped in DDP. Prove that nothing changes: the optimizer
# holds the same parameters, DDP has broadcast into them, and the names begin with `module.`.
#
# <details><summary>Answer</summary>
#
# ```python
# def optimizer_first(rank, world_size, device):
#     inside = network(seed=rank, device=device)
#     optimizer = torch.optim.SGD(inside.parameters(), lr=0.1)
#     model = DistributedDataParallel(inside)
#     held = optimizer.param_groups[0]["params"]
#     same = all(a is b for a, b in zip(held, model.parameters(), strict=True))
#     expected = network(0, device)
#     check_training((model, optimizer), (expected, optimizer), "the constructor")
#     return {"same parameters": same, "first name": next(iter(model.state_dict()))}
# ```
#
# ```text
# optimizer_first: proved on all 4 ranks
#   rank  same parameters  first name
#   0     True             module.0.weight
#   1     True             module.0.weight
#   2     True             module.0.weight
#   3     True             module.0.weight
# ```
#
# </details>

# %% [markdown]
# ## Read on
#
# - S. Li and others, [*PyTorch Distributed*](https://arxiv.org/abs/2006.15704) (2020): buckets,
#   their order, and the overlap with `backward()`, by the authors of DDP.
# - The reference of
#   [DistributedDataParallel](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html),
#   in PyTorch's documentation.
#
# In PyTorch's documentation:
#
# - [`all_reduce`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_reduce)
# - [`get_rank`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.get_rank)
# - [`get_world_size`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.get_world_size)
#
# Next lesson: [sampler](../../notebooks/training/sampler.ipynb), which gives each rank its images.
