# %% [markdown]
"""
# buffers

Batch norm keeps statistics of the data in buffers. They have no gradient, so nobody reduces them.

You will see four ranks with the same parameters that disagree on the same images, what DDP does
with buffers, and a batch norm that normalizes over all ranks.

    python lessons/training/buffers.py
    torchrun --nproc-per-node 4 lessons/training/buffers.py
"""

# %%
from collectives import check, check_training
from collectives.lesson import Curve, digits, run
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_reduce
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP

# %% [markdown]
# ## The idea
#
# A module has parameters, which the optimizer changes, and buffers, which `forward` changes. Batch
# norm has both. In training it normalizes with the mean and the variance of the batch, and keeps
# running averages of them in its buffers `running_mean` and `running_var`. After `model.eval()` it
# normalizes with these averages.
#
# In data parallel training, each rank sees only its shard of the batch. So two things differ from
# one process. Each rank keeps averages of its own. And each rank normalizes with other numbers,
# which changes the gradients, too.

# %% [markdown]
# ## The code
#
# `norm` is the class of the batch norm. The layer before it has no bias, because batch norm
# subtracts the mean, and any bias with it.


# %%
def network(norm, device):
    torch.manual_seed(0)
    layers = nn.Linear(64, 32, bias=False), norm(32), nn.ReLU(), nn.Linear(32, 10)
    return nn.Sequential(*layers).double().to(device)


def batches(n):
    order = torch.randperm(1797, generator=torch.Generator().manual_seed(0))
    return order.split(64 // n * n)[:-1]


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


# %% [markdown]
# ### The statistics drift
#
# Each rank trains with its shards. Then each rank counts how many of all 1,797 images its network
# recognizes, twice. `model.module` uses the buffers of its own rank. `model` first gets the buffers
# of rank 0: DDP broadcasts them before each forward pass of the training, and before the first one
# after it.


# %%
def right(model, device):
    images, labels = digits(device)
    with torch.no_grad():
        return (model.eval()(images).argmax(1) == labels).sum()


def buffers(rank, world_size, device):
    mine = [batch[rank::world_size] for batch in batches(world_size)]
    model = DDP(network(nn.BatchNorm1d, device))
    _, losses = train(model, batch_loss, mine, device)
    own, of_rank_0 = right(model.module, device), right(model, device)
    expected = own.clone()
    dist.broadcast(expected, src=0)
    check(of_rank_0, expected, "the buffers of rank 0")
    return {"loss": losses, "own buffers": own, "buffers of rank 0": of_rank_0}


# %% [markdown]
# **Predict first.** The parameters of all four ranks are equal to the last bit, and so are the
# images. How many different counts do the ranks come to, each with its own buffers? Write the
# number down.

# %%
if __name__ == "__main__":
    run(buffers)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Three: 1718, 1716, 1718 and 1717 images are recognized. The picture shows nothing of it: the loss
# falls on all ranks. With the buffers of rank 0, all ranks count 1718. That is better, because it
# must not matter which rank validates or saves. But these are still the statistics of one shard of
# each batch.
#
# </details>

# %% [markdown]
# ### Normalize over all ranks
#
# This batch norm sums over all ranks before it divides. The gradient must flow through these sums,
# too, because the mean depends on the images of every rank. `dist.all_reduce` would cut it off.
# This `all_reduce` returns a new tensor, and its backward pass is an `all_reduce` of the gradients.
# `lerp_` moves a running average towards the new value, by the share `momentum` (0.1).


# %%
class BatchNormOfAllRanks(nn.BatchNorm1d):
    def forward(self, x):
        count = len(x) * dist.get_world_size()
        mean = all_reduce(x.sum(0), "sum", dist.group.WORLD) / count
        var = all_reduce((x - mean).square().sum(0), "sum", dist.group.WORLD) / count
        with torch.no_grad():
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(var * count / (count - 1), self.momentum)
            self.num_batches_tracked += 1
        return (x - mean) / (var + self.eps).sqrt() * self.weight + self.bias


# %%
def norm_of_all_ranks(rank, world_size, device):
    mine = [batch[rank::world_size] for batch in batches(world_size)]
    trained, losses = train(DDP(network(BatchNormOfAllRanks, device)), batch_loss, mine, device)

    expected, _ = train(network(nn.BatchNorm1d, device), batch_loss, batches(world_size), device)
    check_training(trained, expected, "batch norm of all ranks")
    return {"loss": losses}


# %% [markdown]
# **Predict first.** How many `all_reduce` calls does this layer add to each step, and how many
# numbers does each of them reduce? Write the numbers down.

# %%
if __name__ == "__main__":
    run(norm_of_all_ranks)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 4 calls with 32 numbers each: two in `forward`, and two in `backward()`. They are short, but every
# rank waits in each of them. Parameters and buffers are now those of one process.
#
# </details>

# %%
STEPS = [buffers, norm_of_all_ranks]

# %% [markdown]
# ## The proof
#
# `check_training` compares the buffers as well as the parameters. In `buffers` there is nothing to
# compare with: no single process with batches of 64 trains this network. It checks that after DDP's
# broadcast every rank counts what rank 0 counted.

# %% [markdown]
# ## Make it wrong
#
# Each of these is one change. Make it, run the steps, read what the proof says, and undo it.
#
# 1. **The usual batch norm.** In `norm_of_all_ranks`, change `BatchNormOfAllRanks` to
#    `nn.BatchNorm1d`. It says `rank 0/4: 3.bias.momentum_buffer: relative error 0.6`.
# 2. **Sums without a gradient.** In `forward`, change `(x - mean) / (var + self.eps)` to `(x -
#    mean.detach()) / (var.detach() + self.eps)`. It says `rank 0/4: 1.running_mean: relative error
#    2e+01`. The first forward pass is right, and its gradient is not.
# 3. **The variance around the mean of this rank.** In `forward`, change `(x - mean).square()` to
#    `(x - x.mean(0)).square()`. It says `rank 0/4: 0.weight.momentum_buffer: relative error 0.2`.
# 4. **The variance is divided by the wrong number.** In `forward`, change `var * count / (count -
#    1)` to `var`. It says `rank 0/4: 1.running_var: relative error 0.01`. Only the buffer is wrong:
#    batch norm normalizes with the mean square and keeps the unbiased variance.

# %% [markdown]
# ## Pitfalls
#
# - Validate with `model(...)`, not `model.module(...)`, or broadcast the buffers first. A rank that
#   validates alone must use `model.module`: the forward pass of DDP contains collectives, and the
#   other ranks are elsewhere ([training](../../notebooks/mistakes/training.ipynb)).
# - The option `forward_sync_buffers=False` turns the broadcast off. Its older name is
#   `broadcast_buffers`.
# - The broadcast makes the ranks agree. It does not make the statistics those of the whole batch:
#   they are those of the shards of rank 0.
# - `SyncBatchNorm` is PyTorch's batch norm of all ranks. It needs a GPU: see below.
# - Give no bias to the layer before a batch norm. Its gradient is 0 but for rounding, so that even
#   right programs differ there.
# - Layer norm and group norm normalize each image by itself. They have no such buffers.

# %% [markdown]
# ## Write it yourself
#
# Convert the network with `nn.SyncBatchNorm.convert_sync_batchnorm`, train it with DDP, and prove
# that it is the network of one process. What happens on a CPU?
#
# <details><summary>Answer</summary>
#
# ```python
# def sync_batch_norm(rank, world_size, device):
#     mine = [batch[rank::world_size] for batch in batches(world_size)]
#     model = nn.SyncBatchNorm.convert_sync_batchnorm(network(nn.BatchNorm1d, device))
#     try:
#         trained, _ = train(DDP(model), batch_loss, mine, device)
#     except ValueError as error:
#         return {"device": device.type, "error": str(error)}
#     expected, _ = train(network(nn.BatchNorm1d, device), batch_loss, batches(world_size), device)
#     check_training(trained, expected, "SyncBatchNorm")
#     return {"device": device.type}
# ```
#
# ```text
# sync_batch_norm: proved on all 4 ranks
#   rank  device  error
#   0     cpu     SyncBatchNorm layers only work with GPU modules
#   1     cpu     SyncBatchNorm layers only work with GPU modules
#   2     cpu     SyncBatchNorm layers only work with GPU modules
#   3     cpu     SyncBatchNorm layers only work with GPU modules
# ```
#
# On a GPU `SyncBatchNorm` works (documented), and then the proof runs.
#
# </details>

# %% [markdown]
# ## Read on
#
# - The thread on [DDP and buffers](https://github.com/pytorch/pytorch/issues/22095).
# - [SyncBatchNorm](https://docs.pytorch.org/docs/stable/generated/torch.nn.SyncBatchNorm.html), in
#   PyTorch's documentation.
#
# In PyTorch's documentation:
#
# - [`broadcast`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.broadcast)
# - [`get_world_size`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.get_world_size)
#
# Next lesson: [unused_parameters](../../notebooks/training/unused_parameters.ipynb), for which DDP
# waits.
