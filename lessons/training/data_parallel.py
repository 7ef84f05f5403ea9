# %% [markdown]
"""
# data_parallel

Every rank computes the gradient of its share of the batch, and all ranks take the same step with
the average.

You know the calls; now you put them together. In this lesson you train a network on four ranks, and
prove that one process would have trained the same network.

    python lessons/training/data_parallel.py
    torchrun --nproc-per-node 4 lessons/training/data_parallel.py
"""

# %%
from collectives import check_samples, check_training, digits, note_samples, run
from rank_grid import dealt
import torch
import torch.distributed as dist
from torch import nn

# %% [markdown]
# ## The idea
#
# Every rank has its own copy of the network. The copies stay equal because they start equal and
# take equal steps, as in the picture of [start](../../notebooks/start.ipynb):
#
# 1. **Broadcast** the parameters of rank 0 before the first step.
# 2. **Shard** each batch: every rank takes another piece.
# 3. **all_reduce** the gradients after `backward()`.
# 4. **Divide** them by the number of ranks: the sum of n means becomes their mean.

# %% [markdown]
# ## The code
#
# The first cell knows nothing of other ranks: a network for 1,797 images of digits, and a loop, in
# which `gradients` computes the gradients of a batch. We use float64 so that rounding stays tiny,
# and one thread for each rank, because the ranks share the cores. `note_samples` is for the proof,
# and `dealt`, below, for the picture.


# %%
def network(seed, device):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).double().to(device)


def shuffled():
    return torch.randperm(1797, generator=torch.Generator().manual_seed(0))


def batch_loss(model, images, labels):
    loss = nn.functional.cross_entropy(model(images), labels)  # the mean over the batch
    loss.backward()
    return loss.item()


def train(model, gradients, batches, device, lr=0.1):
    torch.set_num_threads(1)
    images, labels = digits(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    note_samples(model, optimizer)
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        losses.append(gradients(model, images[batch], labels[batch]))
        optimizer.step()
    return (model, optimizer), losses


# %% [markdown]
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
# **Predict first.** Every rank sees other images. Do the ranks have equal losses, and do they have
# equal networks?


# %%
def data_parallel(rank, world_size, device):
    model = network(seed=rank, device=device)  # every rank starts with other parameters
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
    # a multiple of n, so that all shards are equal; drop the smaller last batch
    batches = shuffled().split(64 // world_size * world_size)[:-1]
    trained, losses = train(model, on_my_shard, batches, device)
    # proof: one process with the whole batches
    expected, _ = train(network(0, device), batch_loss, batches, device)
    check_training(trained, expected, "equal shards")
    check_samples(trained, expected, "equal shards")
    images = dealt({"images of the first step": (batches[0].tolist(), shard(batches[0]).tolist())})
    return {"images": images, "first loss": round(losses[0], 4)}


# %%
if __name__ == "__main__":
    run(data_parallel)

# %% [markdown]
# <details><summary>Answer</summary>
#
# The losses differ: the first ones lie between 2.2591 and 2.3897, because each rank knows only its
# own shard. For the loss of the batch, reduce it too. The networks are equal, to the last bit.
#
# </details>

# %% [markdown]
# **Write it yourself**, in your [folder of exercises](../../README.md#exercises):
#
# ```sh
# collectives practice average_the_gradients
# ```

# %%
STEPS = [data_parallel]

# %% [markdown]
# ## The proof
#
# Every rank also trains a network alone, and `check_training` compares the two. But the mean of
# equal gradients is right, too, so it cannot see whether the work is divided. `check_samples` can:
# in each step, the images of all ranks must be the batch.

# %% [markdown]
# ## Make it wrong
#
# Make one change, run the steps, read what the proof says, and undo it.
#
# 1. **The sum for the mean.** In `average_gradients`, change `parameter.grad /=
#    dist.get_world_size()` to `pass`. It says `rank 0/4: 0.bias.momentum_buffer: relative error 5`.
#    For SGD, this is n times the learning rate. With plain Adam you would hardly notice, because it
#    rescales every gradient; with weight decay you would.
# 2. **Every rank takes the whole batch.** In `shard`, change `batch[dist.get_rank() ::
#    dist.get_world_size()]` to `batch`. It says `computed 64 samples of 64, its share is 16`: the
#    network is right, and nothing is gained.

# %% [markdown]
# ## Read on
#
# Next lesson: [ddp](../../notebooks/training/ddp.ipynb), where the library does all this.
