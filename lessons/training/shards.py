# %% [markdown]
"""
# shards: an uneven last batch, and why the mean of means is wrong

The last batch of an epoch rarely divides by the number of ranks, and then the mean of the ranks'
means is not the mean of the batch.

[one_mean](../../notebooks/route/one_mean.ipynb) multiplied a mean by the rank's share of the batch.
This second reading divides sums instead, which also holds for a rank without any image, and shows
what the larger batch of several ranks means for the learning rate.

    python lessons/training/shards.py
    torchrun --nproc-per-node 4 lessons/training/shards.py
"""

# %%
from collectives import check, check_samples, check_training, digits, run
from rank_grid import dealt
from data_parallel import (
    average_gradients,
    batch_loss,
    network,
    on_my_shard,
    shard,
    shuffled,
    train,
)
import torch.distributed as dist
from torch.nn.functional import cross_entropy

# %% [markdown]
# ## The code
#
# Network, loop and equal shards are in
# [data_parallel.py](../../lessons/training/data_parallel.py): data parallel training by hand.

# %% [markdown]
# ### Weighted shards
#
# An epoch of 1,797 images ends with a batch of 5. So each rank divides the sum of its losses by the
# size of the whole batch, and multiplies by n, by which `average_gradients` divides. With four
# ranks and 5 images, whose losses are a to e:
#
#     rank 0: (a + e) * 4 / 5     rank 1: b * 4 / 5     rank 2: c * 4 / 5     rank 3: d * 4 / 5
#     their sum, divided by 4: (a + b + c + d + e) / 5, the mean of the batch
#
# A rank without any image adds zeros. All ranks start with seed 0, so no broadcast is needed.

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
    run(weighted_shards, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Those of ranks 1 to 3: in a mean of means, each would count twice as much as each of the 2 of
# rank 0.
#
# </details>

# %% [markdown]
# ### The batch size and the learning rate
#
# Until now the ranks divided a batch of 64. In most programs, 64 would be the batch of each rank,
# so the whole batch is n times as large, and an epoch has fewer steps. We train with the learning
# rate as it was, and with n times as much.

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
    check(len(batches), len(shuffled()) // (64 * world_size), "steps: 64 images for each rank")
    for name, lr in (("lr as before", 0.1), ("lr times n", 0.1 * world_size)):
        trained, _ = train(network(0, device), on_my_shard, batches, device, lr)
        expected, _ = train(network(0, device), batch_loss, batches, device, lr)
        check_training(trained, expected, name)
        losses[name] = cross_entropy(trained[0](images), labels).item()
    return {"steps": len(batches)} | losses


# %%
if __name__ == "__main__":
    run(batch_size, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# The one process, by far: four ranks make 7 steps, a quarter as many, and their loss is 2.2228.
# With n times the learning rate it is 1.8872, but one process reaches 0.8232. The linear scaling
# rule ([Goyal and others](https://arxiv.org/abs/1706.02677)), a rule of thumb, multiplies the
# learning rate by n, after some steps of warm-up.
#
# </details>

# %%
STEPS = [weighted_shards, batch_size]

# %% [markdown]
# ## The proof
#
# `check_training` compares each training with one process that takes the same whole batches. If
# every rank computed the whole batch, the result would be right, too, so `check_training` would not
# notice that no work was shared. `check_samples` does: in each step, the images of all ranks must
# be the batch.

# %% [markdown]
# ## Make it wrong
#
# Make the change, run the steps, read what the proof says, and undo it.
#
# 1. **A mean of means.** In `on_weighted_shard`, change `total * dist.get_world_size() /
#    len(images)` to `total / len(shard(labels))`. It says `rank 0/4: 2.bias.momentum_buffer:
#    relative error 0.2`: the last batch is wrong.

# %% [markdown]
# ## Read on
#
# The model is right now for shards of any size. Next lesson:
# [buckets](../../notebooks/training/buckets.ipynb), which make the training fast, too.
