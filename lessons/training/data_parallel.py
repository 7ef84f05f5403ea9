# %% [markdown]
"""
# data_parallel

Every rank computes the gradient of its share of the batch, and all ranks take the same step with
the average.

You will see the four parts of data parallel training (broadcast, shard, all_reduce, divide), shards
that are not equally large, and what a larger batch means for the learning rate.

    python lessons/training/data_parallel.py
    torchrun --nproc-per-node 4 lessons/training/data_parallel.py
"""

# %%
from collectives import check_samples, check_training, digits, run
from collectives.pictures.rank_grid import dealt
from one_process import batch_loss, network, shuffled, train
import torch.distributed as dist
from torch.nn.functional import cross_entropy

# %% [markdown]
# ## The idea
#
# In [one_process](../../notebooks/training/one_process.ipynb), one process computed four
# micro-batches one after the other and added up their gradients. Here four ranks compute one piece
# each, at the same time. Every rank has its own copy of the network. The copies stay equal because
# they start equal and take equal steps:
#
# 1. **Broadcast** the parameters of rank 0 before the first step, and the
#    [buffers](../../notebooks/training/buffers.ipynb), of which this network has none.
# 2. **Shard** each batch: every rank takes another piece.
# 3. **all_reduce** the gradients after `backward()`.
# 4. **Divide** them by the number of ranks: the sum of n means becomes their mean.

# %% [markdown]
# ## The code
#
# The network, the order of the images, the loop and the loss of a batch come from the file of
# `one_process`.
#
# ### Equal shards
#
# Each rank takes every n-th image of the batch, 16 of 64 with four ranks. All ranks shuffle with
# the same seed. `broadcast` writes into `parameter.data`, the tensor without autograd.


# %%
def shard(batch):
    return batch[dist.get_rank() :: dist.get_world_size()]


def average_gradients(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def on_my_shard(model, images, labels):
    loss = batch_loss(model, shard(images), shard(labels))
    average_gradients(model)
    return loss


# %% [markdown]
# **Predict first.** In each step every rank sees other images. Do the ranks have equal losses, and
# do they have equal networks?


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
    check_samples(trained, expected, "equal shards")
    images = dealt({"images of the first step": (batches[0].tolist(), shard(batches[0]).tolist())})
    return {"images": images, "first loss": round(losses.values[0], 4)}


# %%
if __name__ == "__main__":
    run(data_parallel)

# %% [markdown]
# <details><summary>Answer</summary>
#
# The losses differ: the first ones lie between 2.2591 and 2.3897, because each rank knows only its
# own shard. The networks are equal, to the last bit.
#
# </details>

# %% [markdown]
# ### Weighted shards
#
# An epoch of 1,797 images ends with a batch of 5, which four ranks cannot divide evenly. Then the
# mean of the ranks' means is not the mean of the batch. So divide the sum of the losses by the size
# of the whole batch. `average_gradients` also divides by n, as DDP does, so each rank first
# multiplies by n. With 5 images, whose losses are a to e, and four ranks:
#
#     rank 0: (a + e) * 4 / 5     rank 1: b * 4 / 5     rank 2: c * 4 / 5     rank 3: d * 4 / 5
#     their sum, divided by 4: (a + b + c + d + e) / 5, the mean of the batch
#
# A rank without any image adds zeros. All ranks start with seed 0, which replaces the broadcast.

# %% [markdown]
# **Predict first.** If the ranks averaged the means of their own images, which of the 5 images of
# the last batch would count too much?


# %%
def on_weighted_shard(model, images, labels):
    total = cross_entropy(model(shard(images)), shard(labels), reduction="sum")
    loss = total * dist.get_world_size() / len(images)
    loss.backward()
    average_gradients(model)
    return loss.item()


def weighted_shards(rank, world_size, device):
    batches = shuffled().split(64)  # 28 batches of 64 images, and one of 5
    trained, _ = train(network(0, device), on_weighted_shard, batches, device)

    expected, _ = train(network(0, device), batch_loss, batches, device)
    check_training(trained, expected, "weighted shards")
    check_samples(trained, expected, "weighted shards")
    last = batches[-1].tolist()
    return {"last batch": dealt({"images of the last step": (last, shard(last))})}


# %%
if __name__ == "__main__":
    run(weighted_shards)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Those of ranks 1 to 3. Rank 0 has 2 of 5 and rank 3 has 1, which would count twice as much as one
# of rank 0.
#
# </details>

# %% [markdown]
# ### The batch size and the learning rate
#
# In most programs, the batch size is that of one rank. If each rank takes 64 images, an epoch has
# fewer steps. We train with the learning rate as it was, and with n times as much.

# %% [markdown]
# **Predict first.** Four ranks train one epoch, and so does one process with batches of 64. Who
# ends with the lower loss, if the learning rate stays as it was?


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


# %%
if __name__ == "__main__":
    run(batch_size)

# %% [markdown]
# <details><summary>Answer</summary>
#
# The one process, by far: four ranks make 7 steps, a quarter of its steps, and their loss is
# 2.2228. With n times the learning rate it is 1.8872, and one process reaches 0.8232. The linear
# scaling rule ([Goyal and others](https://arxiv.org/abs/1706.02677)), a rule of thumb, multiplies
# the learning rate by n, after some steps of warm-up.
#
# </details>

# %%
STEPS = [data_parallel, weighted_shards, batch_size]

# %% [markdown]
# ## The proof
#
# Each step trains a second network in one process, with the same whole batches, and
# `check_training` compares the two on every rank. It cannot see whether the work is divided: if
# every rank computes the whole batch, the mean of equal gradients is right, too. So `check_samples`
# looks at the images that reach the models. In each step those of all ranks must be the batch, each
# once, and no rank may compute more than its share.

# %% [markdown]
# ## Make it wrong
#
# Predict what goes wrong. Make one change, run the steps, read what the proof says, and undo it.
#
# 1. **The sum for the mean.** In `average_gradients`, change `parameter.grad /=
#    dist.get_world_size()` to `pass`. It says `rank 0/4: 0.bias.momentum_buffer: relative error
#    5`. For SGD, this is n times the learning rate.
# 2. **No all_reduce.** In `average_gradients`, change `dist.all_reduce(parameter.grad)` to `pass`.
#    It says `rank 3/4: 2.bias.momentum_buffer: relative error 1`: each rank trains alone.
# 3. **Every rank takes the same shard.** In `shard`, change `dist.get_rank() ::` to `0 ::`. It says
#    `rank 0/4: 2.bias.momentum_buffer: relative error 2`. The ranks are equal, but not right.
# 4. **No broadcast.** In `data_parallel`, change `dist.broadcast(parameter.data, src=0)` to `pass`.
#    It says `rank 2/4: 0.bias: relative error 1`: equal steps from other parameters.
# 5. **Every rank takes the whole batch.** In `shard`, change `batch[dist.get_rank() ::
#    dist.get_world_size()]` to `batch`. It says `computed 64 samples of 64, its share is 16`: the
#    network is right, and nothing is gained.
# 6. **A mean of means.** In `on_weighted_shard`, change `total * dist.get_world_size() /
#    len(images)` to `total / len(shard(labels))`. It says `rank 0/4: 2.bias.momentum_buffer:
#    relative error 0.2`: the last batch is wrong.

# %% [markdown]
# ## Pitfalls
#
# - The loss on rank 0 is that of its shard. For the loss of the batch, reduce it too.
# - A sum for the mean is hard to see with Adam, which divides by the gradient's size.
# - If a parameter got no gradient on one rank, `.grad` is None there. This loop then raises an
#   error there, and the others wait.
# - All ranks must call `all_reduce` for the same parameters in the same order.

# %% [markdown]
# ## Read on
#
# - P. Goyal and others, [*Accurate, Large Minibatch SGD*](https://arxiv.org/abs/1706.02677) (2017):
#   the linear scaling rule, its warm-up, and where it ends.
# - The lessons [all_reduce](../../notebooks/all_reduce.ipynb) and
#   [broadcast](../../notebooks/broadcast.ipynb).
#
# Next lesson: [ddp](../../notebooks/training/ddp.ipynb), where the library does all this.
