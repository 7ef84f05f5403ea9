# %% [markdown]
"""
# buffers: batch norm, SyncBatchNorm and DDP's buffers

Batch norm keeps statistics of the data in buffers, which have no gradient, so no gradient reduction
makes them equal.

Your ranks have the same parameters to the last bit, and yet they validate the same images with
different results. The cause is a batch norm. At the end of this lesson you know what DDP does with
its buffers and what it does not, and you can normalize over the images of all ranks.

    python lessons/training/buffers.py
    torchrun --nproc-per-node 4 lessons/training/buffers.py
"""

# %%
from functools import partial
from collectives import Curve, check, check_training, counting, digits, run
from one_process import batch_loss, shuffled, train
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import all_reduce
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP

# %% [markdown]
# ## The idea
#
# In training, batch norm normalizes with the mean and the variance of the batch. It also keeps
# running averages of the two in its buffers `running_mean` and `running_var`, and after
# `model.eval()` it normalizes with these. In data parallel training each rank sees only its shard
# of the batch, so it keeps averages of its own. It also normalizes with other numbers than one
# process would, which changes the gradients, too.

# %% [markdown]
# ## The code
#
# `norm` is the class of the batch norm. The layer before it has no bias, because batch norm
# subtracts the mean, and any bias with it: its gradient would be 0 but for rounding.


# %%
def network(norm, device):
    torch.manual_seed(0)
    layers = nn.Linear(64, 32, bias=False), norm(32), nn.ReLU(), nn.Linear(32, 10)
    return nn.Sequential(*layers).double().to(device)


def batches(n):
    return shuffled().split(64 // n * n)[:-1]


# %% [markdown]
# ### The statistics drift
#
# One process can do what the ranks do: it normalizes each shard by itself, and shard 0 last, so
# that the statistics of shard 0 stay. After the training, each rank compares its running means with
# those of rank 0, and counts how many of all 1,797 images its network recognizes.
#
# It counts twice: `model.module` uses the buffers of its own rank, and `model` first broadcasts
# those of rank 0, [as you know](../../notebooks/route/wrapped_in_ddp.ipynb). DDP does this before
# every training forward, and before the first `eval` forward.

# %% [markdown]
# **Predict first.** All ranks have equal parameters and equal images. Do they recognize equally
# many, each with its own buffers?


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
    norm, mean = model.module[1], []  # one mean, before and after each forward
    norm.register_forward_pre_hook(lambda *_: mean.append(norm.running_mean[0].item()))
    norm.register_forward_hook(lambda *_: mean.append(norm.running_mean[0].item()))
    trained, _ = train(model, batch_loss, mine, device)
    dist.broadcast(first := norm.running_mean.clone(), src=0)
    drift = ((norm.running_mean - first).norm() / first.norm()).item()
    own, of_rank_0 = right(model.module, device), right(model, device)

    backward = partial(shard_by_shard, world_size)
    expected, _ = train(network(nn.BatchNorm1d, device), backward, batches(world_size), device)
    check_training(trained, expected, "each shard by itself")
    check(drift > 0.01, rank > 0, "the buffers have drifted")
    title = "One running mean, before and after each step"
    one_mean = Curve(mean[44:56], "mean", done=22, per_step=2, title=title)
    correct = {"right, own buffers": own, "right, buffers of rank 0": of_rank_0}
    return {"one mean": one_mean, "drift": f"{drift:.1%}"} | correct


# %%
if __name__ == "__main__":
    run(buffers, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# No: 1718, 1716, 1718 and 1717. The running means of ranks 1 to 3 are 5.3 %, 6.1 % and 3.5 % away
# from those of rank 0. The picture shows one of them: between two marks, before each step, it is
# equal on all ranks, and after the step it is not. With the buffers of rank 0, all ranks count
# 1718. But these are still the statistics of one shard of each batch, and not of the batch.
#
# </details>

# %% [markdown]
# ### Normalize over all ranks
#
# To get the statistics of the batch, this batch norm sums over all ranks before it divides. It also
# sums the numbers of images, because shards may be unequal. The mean now depends on the images of
# every rank, so the gradient must flow back through these sums, and `dist.all_reduce` would cut it
# off. The functional `all_reduce` returns a new tensor, and its backward pass is an `all_reduce` of
# the gradients.
#
# `lerp_` moves a running average towards the new value, by the share `momentum`. After `eval()`
# nothing is summed.


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


# %% [markdown]
# **Predict first.** Does this layer call `all_reduce` in `forward` or in `backward()`?


# %%
def norm_of_all_ranks(rank, world_size, device):
    mine = [batch[rank::world_size] for batch in batches(world_size)]
    model = DDP(network(BatchNormOfAllRanks, device))
    with counting() as counts:
        trained, _ = train(model, batch_loss, mine, device)

    expected, _ = train(network(nn.BatchNorm1d, device), batch_loss, batches(world_size), device)
    check_training(trained, expected, "batch norm of all ranks")
    with counting() as in_eval:
        own = right(model.module, device)
    check(len(in_eval), 0, "eval() reduces nothing")
    calls = counts["_c10d_functional.all_reduce"].calls / len(mine)
    check(calls, 5.0, "calls of the layer in a step")
    return {"calls of the layer in a step": calls, "right": own}


# %%
if __name__ == "__main__":
    run(norm_of_all_ranks, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# In both: 5 calls in a step, three in `forward` and two in `backward()`, for the gradients of two
# sums. In return, parameters and buffers are now those of one process.
#
# </details>

# %% [markdown]
# ### Unequal shards
#
# One reads that SyncBatchNorm averages the ranks' means and variances by `all_reduce`. If shards
# are unequal, such a mean of means is wrong. Here rank r has 2 + r images, and each of them must
# count once.


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
# process that normalizes each shard by itself.

# %% [markdown]
# ## On GPUs
#
# - `nn.SyncBatchNorm.convert_sync_batchnorm(model)` replaces every batch norm of a model, so call
#   it before `DDP(model)`. It needs GPUs (`torch/nn/modules/batchnorm.py`: "SyncBatchNorm expected
#   input tensor to be on GPU").
# - Its forward gathers the statistics and counts of all ranks, so shards may differ in size
#   (`torch/nn/modules/_functions.py`: "Use allgather instead of allreduce because count could be
#   different across ranks").

# %% [markdown]
# ## Make it wrong
#
# Make one change, run the steps, read what the proof says, and undo it.
#
# 1. **The usual batch norm.** In `norm_of_all_ranks`, change `BatchNormOfAllRanks` to
#    `nn.BatchNorm1d`. It says `rank 0/4: 3.bias.momentum_buffer: relative error 0.6`.
# 2. **Sums without a gradient.** In `forward`, change `(x - mean) / (var + self.eps)` to `(x -
#    mean.detach()) / (var.detach() + self.eps)`. It says `rank 0/4: 1.running_mean: relative error
#    2e+01`. The first forward pass is right, and its gradient is not.
# 3. **The variance around the mean of this rank.** In `forward`, change `(x - mean).square()` to
#    `(x - x.mean(0)).square()`. It says `rank 0/4: 0.weight.momentum_buffer: relative error 0.2`.
# 4. **The variance is divided by the wrong number.** In `forward`, change `var * count / (count -
#    1)` to `var`. It says `rank 0/4: 1.running_var: relative error 0.01`. Only the buffer is wrong.
# 5. **`eval()` is ignored.** In `forward`, change `if not self.training:` to `if False:`. It says
#    `[eval() reduces nothing`.
# 6. **The buffers of another rank.** In `shard_by_shard`, change `reversed(range(n))` to
#    `range(n)`. It says `1.running_mean: relative error 0.1`.

# %% [markdown]
# ## Pitfalls
#
# - Validate with `model(...)`, or broadcast the buffers first. But a rank that validates alone
#   [must use](../../notebooks/route/exact_validation.ipynb) `model.module`.
# - The option `forward_sync_buffers=False`, formerly `broadcast_buffers`, turns the broadcast off.
# - In [train_accelerate.py](../../examples/train_accelerate.py), the model of `--model conv` has
#   convolutions and batch norm. On two ranks it is another one than on one rank, and that of
#   `--model linear` is the same.
# - Layer norm and group norm normalize each image by itself, so they have no such buffers.

# %% [markdown]
# ## Read on
#
# Here a gradient went through an `all_reduce`. Next lesson:
# [functional](../../notebooks/training/functional.ipynb), which sends gradients through the other
# calls, too.
