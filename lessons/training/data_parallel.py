# %% [markdown]
"""
# data_parallel

Every rank computes the gradient of its share of the batch, and all ranks take the same step with
the average.

You will see the four parts of data parallel training (broadcast, shard, all_reduce, divide), shards
that are not equally large, and what the batch size of all ranks means for the learning rate.

    python lessons/training/data_parallel.py
    torchrun --nproc-per-node 4 lessons/training/data_parallel.py
"""

# %%
from collectives import check_training
from collectives.lesson import Curve, digits, run
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

# %% [markdown]
# ## The idea
#
# The gradient of a batch is a mean over its images. In
# [one_process](../../notebooks/training/one_process.ipynb), one process computed four micro-batches
# one after the other and added up their gradients. Here four ranks compute one piece each, at the
# same time, and `all_reduce` adds up.
#
# Every rank has its own copy of the network. The copies stay equal because they start equal and
# take equal steps:
#
# 1. **Broadcast** the parameters of rank 0, before the first step.
# 2. **Shard** each batch: every rank takes a different piece of it.
# 3. **all_reduce** the gradients after `backward()`.
# 4. **Divide** them by the number of ranks: the sum of n means becomes their mean.

# %% [markdown]
# ## The code
#
# This is the program of one_process.


# %%
def network(seed, device):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).double().to(device)


def shuffled():
    return torch.randperm(1797, generator=torch.Generator().manual_seed(0))


def train(model, backward, batches, device, lr=0.1):
    torch.set_num_threads(1)  # the ranks of one machine share its cores
    images, labels = digits(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
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


# %% [markdown]
# ### Equal shards
#
# Each rank takes every n-th image of the batch, 16 of 64 with four ranks: rank 1 takes the images
# 1, 5, 9, ... All ranks shuffle with the same seed, so that no two ranks take the same image.
# `broadcast` writes into `parameter.data`, the bare tensor: autograd does not record this change.


# %%
def average_gradients(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def on_my_shard(model, images, labels):
    rank, n = dist.get_rank(), dist.get_world_size()
    loss = batch_loss(model, images[rank::n], labels[rank::n])
    average_gradients(model)
    return loss


# %%
def data_parallel(rank, world_size, device):
    model = network(seed=rank, device=device)  # every rank starts with other parameters
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
    batches = shuffled().split(64 // world_size * world_size)[:-1]  # the last one is smaller
    trained, losses = train(model, on_my_shard, batches, device)

    expected, _ = train(network(0, device), batch_loss, batches, device)
    check_training(trained, expected, "equal shards")
    return {"loss": losses}


# %% [markdown]
# **Predict first.** The network has four parameters: two weights and two biases. In 28 steps, how
# often does each rank call `all_reduce`? Write the number down.

# %%
if __name__ == "__main__":
    run(data_parallel)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 112 times: 4 parameters in each of 28 steps. Here that is quick. A large model has hundreds of
# parameters, and PyTorch's DistributedDataParallel (DDP) puts many of them into one call.
#
# The picture has a curve for each rank, because each rank knows only the loss of its own shard. The
# parameters of all ranks are equal all the same.
#
# </details>

# %% [markdown]
# ### Weighted shards
#
# An epoch of 1,797 images ends with a batch of 5, which four ranks cannot divide evenly. Then the
# mean of the ranks' means is not the mean of the batch. So take the sum of the losses instead, and
# divide by the size of the whole batch. The factor n is there because `average_gradients` divides
# by n, as DDP does, too. A rank without any image adds zeros.


# %%
def on_weighted_shard(model, images, labels):
    rank, n = dist.get_rank(), dist.get_world_size()
    total = cross_entropy(model(images[rank::n]), labels[rank::n], reduction="sum")
    loss = total * n / len(images)
    loss.backward()
    average_gradients(model)
    return loss.item()


def weighted_shards(rank, world_size, device):
    batches = shuffled().split(64)  # 28 batches of 64 images, and one of 5
    trained, losses = train(network(0, device), on_weighted_shard, batches, device)

    expected, _ = train(network(0, device), batch_loss, batches, device)
    check_training(trained, expected, "weighted shards")
    return {"loss": losses, "images of the last batch": len(batches[-1][rank::world_size])}


# %% [markdown]
# **Predict first.** How many of the 5 images of the last batch does rank 0 get, and how many rank
# 3? Write the numbers down.

# %%
if __name__ == "__main__":
    run(weighted_shards)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Rank 0 gets 2 and rank 3 gets 1. With the mean of each rank's mean, an image of rank 3 would count
# twice as much as one of rank 0.
#
# </details>

# %%
STEPS = [data_parallel, weighted_shards]

# %% [markdown]
# ## The proof
#
# Each step trains a second network in one process, with the same batches as a whole, and
# `check_training` compares the two on every rank. It does so with 1 to 5 ranks in the tests. The
# batches of `data_parallel` have 64 images with 1, 2 or 4 ranks, 63 with 3, and 60 with 5.

# %% [markdown]
# ## Make it wrong
#
# Each of these is one change. Make it, run the steps, read what the proof says, and undo it.
#
# 1. **The sum for the mean.** In `average_gradients`, change `parameter.grad /=
#    dist.get_world_size()` to `pass`. It says `rank 0/4: 0.bias.momentum_buffer: relative error 5`.
#    For SGD this is a learning rate n times as large.
# 2. **No all_reduce.** In `average_gradients`, change `dist.all_reduce(parameter.grad)` to `pass`.
#    It says `rank 3/4: 2.bias.momentum_buffer: relative error 1`.
# 3. **One bias is forgotten.** In `average_gradients`, change `for parameter in
#    model.parameters():` to `for parameter in list(model.parameters())[:-1]:`. It says `rank 3/4:
#    2.bias.momentum_buffer: relative error 2`.
# 4. **Every rank takes the same shard.** In `on_my_shard`, change `images[rank::n],
#    labels[rank::n]` to `images[::n], labels[::n]`. It says `rank 0/4: 2.bias.momentum_buffer:
#    relative error 2`.
# 5. **No broadcast.** In `data_parallel`, change `dist.broadcast(parameter.data, src=0)` to `pass`.
#    It says `rank 2/4: 0.bias: relative error 1`.
# 6. **A mean of means.** In `on_weighted_shard`, change `loss = total * n / len(images)` to `loss =
#    total / len(labels[rank::n])`. It says `rank 0/4: 2.bias.momentum_buffer: relative error 0.2`.

# %% [markdown]
# ## Pitfalls
#
# - The loss on rank 0 is the loss of the shard of rank 0. For the loss of the batch, reduce it too.
# - The batch size of most programs is that of one process. With 64 images for each of four ranks, a
#   step takes 256 images, as one process with batches of 256. If you add ranks, an epoch has fewer
#   steps. So the learning rate is often multiplied by n, too, after some steps of warm-up: the
#   linear scaling rule ([Goyal and others](https://arxiv.org/abs/1706.02677)). It is a rule of
#   thumb for SGD. Compare a run on n ranks with one process of the same total batch.
# - A sum for the mean is easy to miss with Adam, which divides by the size of the gradient.
# - A parameter that got no gradient on one rank has `.grad = None` there. This loop then raises an
#   error on that rank, and the others wait.
# - All ranks must call `all_reduce` for the same parameters in the same order.

# %% [markdown]
# ## Write it yourself
#
# Let each rank take 64 images in each step. Prove that this is one process with batches of 64 n.
# Then multiply the learning rate by n, and compare the losses on all images.
#
# <details><summary>Answer</summary>
#
# ```python
# def batch_size(rank, world_size, device):
#     images, labels = digits(device)
#     batches = shuffled().split(64 * world_size)[:-1]
#     losses = {}
#     for lr in (0.1, 0.1 * world_size):
#         trained, _ = train(network(0, device), on_my_shard, batches, device, lr)
#         expected, _ = train(network(0, device), batch_loss, batches, device, lr)
#         check_training(trained, expected, f"lr={lr}")
#         model, _ = trained
#         losses[f"loss, lr={lr}"] = cross_entropy(model(images), labels).item()
#     return {"steps": len(batches)} | losses
# ```
#
# ```text
# batch_size: proved on all 4 ranks
#   rank  steps  loss, lr=0.1  loss, lr=0.4
#   0     7      2.2228        1.8872
#   1     7      2.2228        1.8872
#   2     7      2.2228        1.8872
#   3     7      2.2228        1.8872
# ```
#
# 7 steps instead of 28. With the larger learning rate the loss falls further, but the loss of the
# small batches is not reached in one epoch.
#
# </details>

# %% [markdown]
# ## Read on
#
# - P. Goyal and others, [*Accurate, Large Minibatch SGD*](https://arxiv.org/abs/1706.02677) (2017):
#   the linear scaling rule, its warm-up, and where it ends.
# - The lesson [all_reduce](../../notebooks/all_reduce.ipynb): the call itself.
#
# In PyTorch's documentation:
#
# - [`all_reduce`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_reduce)
# - [`broadcast`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.broadcast)
# - [`get_rank`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.get_rank)
# - [`get_world_size`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.get_world_size)
#
# Next lesson: [different_bits](../../notebooks/training/different_bits.ipynb), how equal the two
# models are.
