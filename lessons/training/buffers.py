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
from functools import partial
from collectives import Curve, check, check_training, counting, digits, run
from one_process import batch_loss, train
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


# %% [markdown]
# ### The statistics drift
#
# Each rank trains with its shards. One process can do the same: it normalizes each shard by itself,
# and shard 0 last, so that only its statistics stay. After the training, each rank compares its
# running averages with those of rank 0, and counts how many of all 1,797 images its network
# recognizes. `model.module` uses the buffers of its own rank. Calling `model` broadcasts rank 0's
# buffers first; DDP does this before every training forward, and once more before the first `eval`
# forward.


# %%
def right(model, device):
    images, labels = digits(device)
    with torch.no_grad():
        return (model.eval()(images).argmax(1) == labels).sum()


def shard_by_shard(n, model, images, labels):
    before = [buffer.clone() for buffer in model.buffers()]
    for rank in reversed(range(n)):  # rank 0 last: its buffers stay
        for buffer, value in zip(model.buffers(), before, strict=True):
            buffer.copy_(value)
        (cross_entropy(model(images[rank::n]), labels[rank::n]) / n).backward()
    return 0.0


def buffers(rank, world_size, device):
    mine = [batch[rank::world_size] for batch in batches(world_size)]
    model = DDP(network(nn.BatchNorm1d, device))
    means = []  # the buffer after each step
    note = model.module[1].register_forward_hook(
        lambda norm, *_: means.append(norm.running_mean.clone())
    )
    trained, _ = train(model, batch_loss, mine, device)
    note.remove()
    own, of_rank_0 = right(model.module, device), right(model, device)
    dist.broadcast(first := torch.stack(means), src=0)
    drift = ((torch.stack(means) - first).norm(dim=1) / first.norm(dim=1)).tolist()

    backward = partial(shard_by_shard, world_size)
    expected, _ = train(network(nn.BatchNorm1d, device), backward, batches(world_size), device)
    check_training(trained, expected, "each shard by itself")
    check(drift[-1] > 0.01, rank > 0, "the buffers have drifted")
    shown = {"drift": Curve(drift, "drift from rank 0"), "at the end": f"{drift[-1]:.1%}"}
    return shown | {"right, own buffers": own, "right, buffers of rank 0": of_rank_0}


# %% [markdown]
# **Predict first.** The parameters of all four ranks are equal to the last bit, and so are the
# images. Do the ranks recognize equally many images, each with its own buffers?

# %%
if __name__ == "__main__":
    run(buffers)

# %% [markdown]
# <details><summary>Answer</summary>
#
# No: 1718, 1716, 1718 and 1717. The running means of ranks 1 to 3 are 5.3 %, 6.1 % and 3.5 % away
# from those of rank 0. With the buffers of rank 0, all ranks count 1718. That is better, because it
# must not matter which rank validates or saves. But these are still the statistics of one shard of
# each batch. The picture shows how far the means of each rank are from those of rank 0
# after each step, although DDP makes them equal before each step.
#
# </details>

# %% [markdown]
# ### Normalize over all ranks
#
# This batch norm sums over all ranks before it divides. The gradient must flow through these sums,
# too, because the mean depends on the images of every rank. `dist.all_reduce` would cut it off.
# This `all_reduce` returns a new tensor, and its backward pass is an `all_reduce` of the gradients.
# (Its module has an underscore, but torch 2.13 names no public one: `torch.distributed.nn` is
# deprecated in its favour.) `lerp_` moves a running average towards the new value, by the share
# `momentum` (0.1). After `eval()` nothing is summed: the layer uses its running averages.
#
# The ranks also add up how many images they have, so that unequal shards count by their size.


# %%
class BatchNormOfAllRanks(nn.BatchNorm1d):
    def forward(self, x):
        if not self.training:
            return super().forward(x)
        count = all_reduce(torch.tensor(len(x), device=x.device), "sum", dist.group.WORLD)
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
    model = DDP(network(BatchNormOfAllRanks, device))
    with counting() as counts:
        trained, _ = train(model, batch_loss, mine, device)

    expected, _ = train(network(nn.BatchNorm1d, device), batch_loss, batches(world_size), device)
    check_training(trained, expected, "batch norm of all ranks")
    own, of_rank_0 = right(model.module, device), right(model, device)
    check(own, of_rank_0, "the same buffers on all ranks")
    with counting() as in_eval:
        model.module(torch.ones(2, 64, dtype=torch.float64, device=device))
    check(len(in_eval), 0, "eval() reduces nothing")
    calls = counts["_c10d_functional.all_reduce"].calls / len(mine)
    check(calls, 5.0, "calls of the layer in a step")
    return {"calls of the layer in a step": calls, "right": own}


# %% [markdown]
# **Predict first.** In which of the two, `forward` or `backward()`, does this layer call
# `all_reduce`?

# %%
if __name__ == "__main__":
    run(norm_of_all_ranks)

# %% [markdown]
# <details><summary>Answer</summary>
#
# In both: 5 calls in a step, three in `forward` and two in `backward()`, which reduces the
# gradients of the two sums. They are short, but every rank waits in each of them. Parameters and
# buffers are now those of one process, on every rank.
#
# </details>

# %% [markdown]
# ### Unequal shards
#
# Rank r has 2 + r images here. Each of them must count once, not each rank.


# %%
def unequal_shards(rank, world_size, device):
    images, _ = digits(device)
    sizes = list(range(2, 2 + world_size))
    shards = images[: sum(sizes)].split(sizes)
    got = BatchNormOfAllRanks(64, device=device).double()(shards[rank])

    whole = nn.BatchNorm1d(64, device=device).double()(torch.cat(shards)).split(sizes)
    check(torch.allclose(got, whole[rank], rtol=1e-9), True, "unequal shards")
    return {"images": len(got)}


# %%
if __name__ == "__main__":
    run(unequal_shards)

# %%
STEPS = [buffers, norm_of_all_ranks, unequal_shards]

# %% [markdown]
# ## The proof
#
# `check_training` compares the buffers as well as the parameters. In `buffers` it compares with one
# process that normalizes each shard by itself, because no single process that normalizes whole
# batches of 64 trains this network.

# %% [markdown]
# ## On GPUs
#
# - `SyncBatchNorm` does not run on the CPU (`torch/nn/modules/batchnorm.py`: "SyncBatchNorm
#   expected input tensor to be on GPU").
# - Its forward gathers the statistics and counts of all ranks, so shards may differ in size
#   (`torch/nn/modules/_functions.py`: "Use allgather instead of allreduce because count could be
#   different across ranks").

# %% [markdown]
# ## Make it wrong
#
# Each of these is one change. Predict what goes wrong. Then make it, run the steps, read what the
# proof says, and undo it.
#
# 1. **The usual batch norm.** In `norm_of_all_ranks`, change `BatchNormOfAllRanks` to
#    `nn.BatchNorm1d`.
#
#    <details><summary>Answer</summary>
#
#    It says `rank 0/4: 3.bias.momentum_buffer: relative error 0.6`.
#
#    </details>
#
# 2. **Sums without a gradient.** In `forward`, change `(x - mean) / (var + self.eps)` to `(x -
#    mean.detach()) / (var.detach() + self.eps)`.
#
#    <details><summary>Answer</summary>
#
#    It says `rank 0/4: 1.running_mean: relative error 2e+01`. The first forward pass is right, and
#    its gradient is not.
#
#    </details>
#
# 3. **The variance around the mean of this rank.** In `forward`, change `(x - mean).square()` to
#    `(x - x.mean(0)).square()`.
#
#    <details><summary>Answer</summary>
#
#    It says `rank 0/4: 0.weight.momentum_buffer: relative error 0.2`.
#
#    </details>
#
# 4. **The variance is divided by the wrong number.** In `forward`, change `var * count / (count -
#    1)` to `var`.
#
#    <details><summary>Answer</summary>
#
#    It says `rank 0/4: 1.running_var: relative error 0.01`. Only the buffer is wrong: batch norm
#    normalizes with the mean square and keeps the unbiased variance.
#
#    </details>
#
# 5. **`eval()` is ignored.** In `forward`, change `if not self.training:` to `if False:`.
#
#    <details><summary>Answer</summary>
#
#    It says `[eval() reduces nothing`.
#
#    </details>
#
# 6. **The buffers of another rank.** In `shard_by_shard`, change `reversed(range(n))` to
#    `range(n)`.
#
#    <details><summary>Answer</summary>
#
#    It says `1.running_mean: relative error 0.1`.
#
#    </details>

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
