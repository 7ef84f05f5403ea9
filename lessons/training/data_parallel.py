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
from collectives import check_training, digits, run
from one_process import batch_loss, network, shuffled, train
import torch.distributed as dist
from torch.nn.functional import cross_entropy

# %% [markdown]
# ## The idea
#
# The gradient of a batch is a mean over its images. In
# [one_process](../../notebooks/training/one_process.ipynb), one process computed four micro-batches
# one after the other and added up their gradients. Here four ranks compute one piece each, at the
# same time, and `all_reduce` adds up their gradients.
#
# Every rank has its own copy of the network. The copies stay equal because they start equal and
# take equal steps:
#
# 1. **Broadcast** the parameters of rank 0 before the first step, and the
#    [buffers](../../notebooks/training/buffers.ipynb), of which this network has none.
# 2. **Shard** each batch: every rank takes a different piece of it.
# 3. **all_reduce** the gradients after `backward()`.
# 4. **Divide** them by the number of ranks: the sum of n means becomes their mean.

# %% [markdown]
# ## The code
#
# The network, the order of the images, the loop and the loss of a batch are those of
# [one_process](../../notebooks/training/one_process.ipynb), imported from its file.
#
# ### Equal shards
#
# Each rank takes every n-th image of the batch, 16 of 64 with four ranks: rank 1 takes the images
# 1, 5, 9, ... All ranks shuffle with the same seed, so no two ranks take the same image.
# `broadcast` writes into `parameter.data`, the tensor without autograd: this change needs no
# gradient.


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
    # a multiple of n, so that all shards are equal; drop the smaller last batch
    batches = shuffled().split(64 // world_size * world_size)[:-1]
    trained, losses = train(model, on_my_shard, batches, device)

    expected, _ = train(network(0, device), batch_loss, batches, device)
    check_training(trained, expected, "equal shards")
    return {"loss": losses}


# %% [markdown]
# **Predict first.** In each step every rank sees other images. Do the ranks have equal losses, and
# do they have equal networks?

# %%
if __name__ == "__main__":
    run(data_parallel)

# %% [markdown]
# <details><summary>Answer</summary>
#
# The losses differ: the first ones lie between 2.2591 and 2.3897, because each rank knows only its
# own shard. The networks are equal, to the last bit.
#
# In each step, each rank calls `all_reduce` once for each parameter. PyTorch's
# DistributedDataParallel (DDP) puts many parameters into one call.
#
# </details>

# %% [markdown]
# ### Weighted shards
#
# An epoch of 1,797 images ends with a batch of 5, which four ranks cannot divide evenly. Then the
# mean of the ranks' means is not the mean of the batch. So take the sum of the losses instead, and
# divide by the size of the whole batch. `average_gradients` divides by n, as DDP does, and so each
# rank first multiplies by n. With 5 images, whose losses are a to e, and four ranks:
#
#     rank 0: (a + e) * 4 / 5     rank 1: b * 4 / 5     rank 2: c * 4 / 5     rank 3: d * 4 / 5
#     their sum, divided by 4: (a + b + c + d + e) / 5, the mean of the batch
#
# A rank without any image adds zeros. All ranks use seed 0, so no broadcast is needed.


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
# **Predict first.** If each rank took the mean of its own images, and the ranks averaged these
# means, which of the 5 images of the last batch would count too much?

# %%
if __name__ == "__main__":
    run(weighted_shards)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Those of ranks 1 to 3. Rank 0 gets 2 images and rank 3 gets 1, so an image of rank 3 would count
# twice as much as one of rank 0.
#
# </details>

# %% [markdown]
# ### The batch size and the learning rate
#
# The batch size of most programs is that of one process. Here each rank takes 64 images in each
# step. So a step takes 64 n images, and an epoch has fewer steps. The step trains twice: with the
# learning rate as it was, and with n times as much.


# %%
def batch_size(rank, world_size, device):
    images, labels = digits(device)
    losses = {}
    (model, _), _ = train(network(0, device), batch_loss, shuffled().split(64)[:-1], device)
    losses["one process"] = cross_entropy(model(images), labels).item()
    batches = shuffled().split(64 * world_size)[:-1]
    for name, lr in (("lr as before", 0.1), ("lr times n", 0.1 * world_size)):
        trained, _ = train(network(0, device), on_my_shard, batches, device, lr)
        expected, _ = train(network(0, device), batch_loss, batches, device, lr)
        check_training(trained, expected, name)
        losses[name] = cross_entropy(trained[0](images), labels).item()
    return {"steps": len(batches)} | losses


# %% [markdown]
# **Predict first.** Four ranks train one epoch, and so does one process with batches of 64. Who
# ends with the lower loss on all images, if the learning rate stays as it was?

# %%
if __name__ == "__main__":
    run(batch_size)

# %% [markdown]
# <details><summary>Answer</summary>
#
# The one process, by far: four ranks make 7 steps, a quarter of its steps, and their loss is
# 2.2228. With n times the learning rate it is 1.8872, and one process reaches 0.8232. The linear
# scaling rule ([Goyal and others](https://arxiv.org/abs/1706.02677)) multiplies the learning rate
# by n, after some steps of warm-up. It is a rule of thumb.
#
# </details>

# %%
STEPS = [data_parallel, weighted_shards, batch_size]

# %% [markdown]
# ## The proof
#
# Each step trains a second network in one process, with the same whole batches, and
# `check_training` compares the two on every rank. The tests do this with 1 to 5 ranks. The batches
# of `data_parallel` have 64 images with 1, 2 or 4 ranks, 63 with 3, and 60 with 5.

# %% [markdown]
# ## Make it wrong
#
# Each of these is one change. Predict what goes wrong. Then make it, run the steps, read what the
# proof says, and undo it.
#
# 1. **The sum for the mean.** In `average_gradients`, change `parameter.grad /=
#    dist.get_world_size()` to `pass`. Which learning rate would give the right parameters again?
#
#    <details><summary>Answer</summary>
#
#    0.1 / n, because for SGD this sum is a learning rate n times as large. It says `rank 0/4:
#    0.bias.momentum_buffer: relative error 5`.
#
#    </details>
#
# 2. **No all_reduce.** In `average_gradients`, change `dist.all_reduce(parameter.grad)` to `pass`.
#    Do the ranks still have equal networks?
#
#    <details><summary>Answer</summary>
#
#    No: each trains on its own shards. It says `rank 3/4: 2.bias.momentum_buffer: relative error
#    1`.
#
#    </details>
#
# 3. **One bias is forgotten.** In `average_gradients`, change `for parameter in
#    model.parameters():` to `for parameter in list(model.parameters())[:-1]:`. Which parameter
#    differs most?
#
#    <details><summary>Answer</summary>
#
#    The bias itself, the last parameter. It says `rank 3/4: 2.bias.momentum_buffer: relative error
#    2`.
#
#    </details>
#
# 4. **Every rank takes the same shard.** In `on_my_shard`, change `images[rank::n],
#    labels[rank::n]` to `images[::n], labels[::n]`. Are the ranks still equal?
#
#    <details><summary>Answer</summary>
#
#    Yes, but they train on a quarter of the images. It says `rank 0/4: 2.bias.momentum_buffer:
#    relative error 2`.
#
#    </details>
#
# 5. **No broadcast.** In `data_parallel`, change `dist.broadcast(parameter.data, src=0)` to `pass`.
#    All ranks take equal steps. Is that enough?
#
#    <details><summary>Answer</summary>
#
#    No: they start from other parameters. It says `rank 2/4: 0.bias: relative error 1`.
#
#    </details>
#
# 6. **A mean of means.** In `on_weighted_shard`, change `loss = total * n / len(images)` to `loss =
#    total / len(labels[rank::n])`. For which batch is that wrong?
#
#    <details><summary>Answer</summary>
#
#    For the last alone, which has 5 images. It says `rank 0/4: 2.bias.momentum_buffer: relative
#    error 0.2`.
#
#    </details>

# %% [markdown]
# ## Pitfalls
#
# - The loss on rank 0 is the loss of the shard of rank 0. For the loss of the batch, reduce it too.
# - A sum for the mean is easy to miss with Adam, which divides by the size of the gradient.
# - A parameter that got no gradient on one rank has `.grad = None` there. This loop then raises an
#   error on that rank, and the others wait.
# - All ranks must call `all_reduce` for the same parameters in the same order.

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
# Next lesson: [ddp](../../notebooks/training/ddp.ipynb), where the library does all this.
