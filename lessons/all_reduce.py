# %% [markdown]
"""
# all_reduce

`all_reduce` adds up one tensor of every rank, and every rank gets the sum. When four GPUs train one
model, each on its own data, all of them need the average of the four gradients.

You will see a training step on four ranks that equals the step of one process; the mean of means,
which is wrong; a softmax over all ranks; and a sum in the background.

    python lessons/all_reduce.py
    torchrun --nproc-per-node 4 lessons/all_reduce.py
"""

# %%
from collectives import check, run, span
import torch
import torch.distributed as dist

# %% [markdown]
# ## The call
#
# `all_reduce` works in place: `x` is the input, and afterwards the output. `op` names the
# [reduction](../docs/glossary.md#reduction): SUM (the default), AVG, MIN, MAX, PRODUCT. AVG is the
# sum divided by n, the world size.


# %%
def all_reduce(rank, world_size, device):
    x = torch.tensor([1, 2], device=device) * 10**rank
    before = x.clone()
    dist.all_reduce(x, op=dist.ReduceOp.SUM)
    # proof
    ones = (10**world_size - 1) // 9  # 1 + 10 + 100 + ... = 11...1
    check(x, torch.tensor([ones, 2 * ones]), "all_reduce(SUM)")
    return {"before": before, "after": x}


# %%
if __name__ == "__main__":
    run(all_reduce)

# %% [markdown]
# Four ranks print this:
#
# | rank | before | after |
# |---|---|---|
# | 0 | [1, 2] | [1111, 2222] |
# | 1 | [10, 20] | [1111, 2222] |
# | 2 | [100, 200] | [1111, 2222] |
# | 3 | [1000, 2000] | [1111, 2222] |
#
# The sum is taken element by element. Each rank adds its own digit: the last is that of rank 0. In
# the notebook's picture (or `collectives run all_reduce --picture`) each colour is a rank.

# %% [markdown]
# ### A training step on all ranks
#
# The model is one weight, and computes `weight * x`. It should become 3, and starts at 1 on every
# rank. Each rank computes the gradient of two samples. `all_reduce` and the division turn the
# ranks' gradients into their mean. All ranks take equally many samples, so this mean is the
# gradient of all samples: every rank makes the step of one process with all samples.

# %% [markdown]
# **Predict first.** The ranks' own gradients are -10, -50, -122 and -226, and the learning rate is
# 0.01. What is the new weight on rank 0, and on rank 3?


# %%
def training_step(rank, world_size, device):
    samples = torch.arange(1.0, 2 * world_size + 1, device=device)
    mine = samples[2 * rank : 2 * rank + 2]
    weight = torch.ones(1, device=device, requires_grad=True)

    loss = ((weight * mine - 3 * mine) ** 2).mean()
    loss.backward()
    own = weight.grad.clone()
    dist.all_reduce(weight.grad, op=dist.ReduceOp.SUM)
    weight.grad /= world_size
    with torch.no_grad():
        weight -= 0.01 * weight.grad
    # proof: one process with all samples
    alone = torch.ones(1, device=device, requires_grad=True)
    ((alone * samples - 3 * samples) ** 2).mean().backward()
    one_process = alone.detach() - 0.01 * alone.grad
    check(weight.detach(), one_process, "the weight of one process", rtol=1e-6)
    return {"own gradient": own, "mean": weight.grad, "weight": weight.detach()}


# %%
if __name__ == "__main__":
    run(training_step)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 2.02 on both. The mean of the gradients is -102, so every rank makes the same step from 1 to 1 +
# 1.02. With a real model, [a loop](../notebooks/training/data_parallel.ipynb) makes this call for
# each parameter, or [DDP](../docs/glossary.md#ddp) does it in `backward()`.
#
# </details>

# %% [markdown]
# ### The mean of means
#
# Rank r holds r + 1 numbers: rank 0 holds 1; rank 1 holds 1, 2; rank 2 holds 1, 2, 3. We want the
# mean of all numbers. So reduce the sum and the count, in one tensor, and divide.

# %% [markdown]
# **Predict first.** The ranks' own means are 1, 1.5, 2 and 2.5, and the mean of these four is 1.75.
# What is the mean of all ten numbers?


# %%
def mean_of_all(rank, world_size, device):
    values = torch.arange(1.0, rank + 2, device=device)
    both = torch.stack([values.sum(), torch.ones_like(values).sum()])
    dist.all_reduce(both, op=dist.ReduceOp.SUM)
    mean = both[0] / both[1]
    # proof: a closed form
    check(mean, torch.tensor((world_size + 2) / 3), "mean by all_reduce(SUM)")
    return {"values": values, "own mean": values.mean(), "sum, count": both, "mean": mean}


# %%
if __name__ == "__main__":
    run(mean_of_all)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 2: the sum is 20, of 10 numbers. In the mean of means, the one number of rank 0 counts as much as
# the four of rank 3. The same mistake is easy with losses, gradients and accuracies.
#
# </details>

# %% [markdown]
# ### A softmax over all ranks
#
# A softmax turns scores, the [logits](../docs/glossary.md#logits), into probabilities that add up
# to 1: it raises e (here 2) to the power of each logit, and divides by the sum of all these powers.
# The power of a high logit overflows. So first subtract the highest logit, which does not change
# the result. If each rank holds only some of the logits, here two, this takes two reductions: MAX
# for the highest, and SUM for the sum. Each exchanges one number, however many logits there are.


# %%
def softmax(rank, world_size, device):
    logits = torch.tensor([2.0 * rank + 1, 2.0 * rank + 2], device=device)
    highest = logits.max()
    dist.all_reduce(highest, op=dist.ReduceOp.MAX)
    powers = torch.exp2(logits - highest)
    total = powers.sum()
    dist.all_reduce(total, op=dist.ReduceOp.SUM)
    probabilities = powers / total
    # proof: the logits are 1, 2, ..., 2n, so each power is twice the one before
    whole = torch.exp2(torch.arange(2.0 * world_size))
    whole /= whole.sum()
    # a wrong `highest` would cancel, so it has a check of its own
    check(highest, torch.tensor(2.0 * world_size), "the highest logit of all ranks")
    check(probabilities, whole[2 * rank : 2 * rank + 2], "softmax over all ranks", rtol=1e-6)
    return {"logits": logits, "highest": highest, "probabilities": probabilities}


# %%
if __name__ == "__main__":
    run(softmax)

# %% [markdown]
# ### In the background
#
# With `async_op=True` the call returns a [`Work`](../docs/glossary.md#work) immediately, and the
# ranks exchange the data while the program computes something else. Until `wait()` returns, do not
# read the tensor, and do not write to it. `span` only marks the program's own work in the picture.


# %%
def in_the_background(rank, world_size, device):
    x = torch.tensor([1, 2], device=device) * 10**rank
    before = x.clone()
    work = dist.all_reduce(x, op=dist.ReduceOp.SUM, async_op=True)
    with span("multiply"):  # it must not use `x`
        product = torch.ones(64, 64, device=device) @ torch.ones(64, 64, device=device)
    work.wait()
    # proof
    ones = (10**world_size - 1) // 9
    check(x, torch.tensor([ones, 2 * ones]), "all_reduce(SUM, async_op=True)")
    return {"before": before, "product": product[0, 0], "after wait()": x}


# %%
if __name__ == "__main__":
    run(in_the_background)

# %%
STEPS = [all_reduce, training_step, mean_of_all, softmax, in_the_background]

# %% [markdown]
# ## The cost
#
# For small tensors the number of rounds decides, and for large ones the number of bytes. S is the
# size of the tensor in bytes. Two ways are common:
#
# - A [ring](../notebooks/algorithms/ring.ipynb): each rank sends only to the next one, in 2 (n - 1)
#   rounds a piece of S / n each. That is less than 2 S, however many ranks there are.
# - A [tree](../notebooks/algorithms/tree.ipynb): half of the ranks send to the other half, and so
#   on, until one rank has the sum; then the same backwards. That is about 2 log2(n) rounds.
#
# On gloo with four ranks on two cores, 16 MiB took only 5 times as long as 4 KiB (`collectives
# bench bus all_reduce -n 4 -b 4KiB -e 16MiB -f 4096`: 31 and 6.4 ms).

# %% [markdown]
# ## Pitfalls
#
# - Every rank must pass the same reduction, dtype and number of elements. gloo does not compare the
#   reductions: one MAX among SUMs gives [wrong numbers](../notebooks/mistakes/arguments.ipynb), and
#   no error.
# - If you read the tensor [before `wait()`](../notebooks/mistakes/buffers.ipynb), you may see half
#   a sum.
# - gloo refuses AVG [for integers](../notebooks/hearsay.ipynb). The bitwise BAND, BOR and BXOR are
#   for integers only. [Backends](../docs/backends.md) lists what each backend refuses.
# - Another backend may add in another order, and give another last bit of a floating-point sum.

# %% [markdown]
# ## On GPUs
#
# - `wait()` does not stop the CPU: it makes the current [stream](../docs/glossary.md#stream) wait
#   (`torch/distributed/_functional_collectives.py`: "Waiting follows device semantics, which means
#   blocking on CPU and synchronizing streams on CUDA.").
# - NCCL has PREMUL_SUM (`torch/distributed/fsdp/_fully_shard/_fully_shard.py`: "a custom reduce op
#   using NCCL's PreMulSum, which allows multiplying by the factor before reduction").

# %% [markdown]
# ## Where it is used
#
# DDP averages gradients while `backward()` still computes, and packs many small gradients into one
# call, a [bucket](../docs/glossary.md#bucket). [Tensor
# parallelism](../docs/glossary.md#tensor-parallel) sums the partial products of a layer. An
# evaluation sums right answers and examples.

# %% [markdown]
# ## Change and try
#
# Make one change, run its cell and the next one, and undo it.
#
# 1. In `all_reduce`, change `dist.all_reduce(x,` to
#    `dist.all_reduce(x.clone() if rank == 2 else x,`. Rank 2 passes a copy. Which ranks get
#    the sum in `x`?
#
#    <details><summary>Answer</summary>
#
#    You get `rank 2/4: got [100, 200], should be [1111, 2222] [all_reduce(SUM), int64[2], gloo]`.
#    All others get the sum. The sum of rank 2 is in the copy.
#
#    </details>
#
# 2. In `training_step`, change `samples[2 * rank : 2 * rank + 2]` to `samples[rank::world_size]`.
#    Now rank 0 takes the samples 1 and 5. Which columns change?
#
#    <details><summary>Answer</summary>
#
#    You get `0 [-52.0] [-102.0] [2.02]`. Only the own gradients change: their mean is that of all
#    samples, whichever rank takes them.
#
#    </details>

# %% [markdown]
# ## Write it yourself
#
# In your folder of [exercises](../README.md#exercises):
#
# ```sh
# collectives practice accuracy_over_unequal_shards
# collectives practice overlap
# ```

# %% [markdown]
# ## Read on
#
# - P. Patarasuk and X. Yuan, *Bandwidth optimal all-reduce algorithms for clusters of workstations*
#   (2009): why nothing can send less than a ring does.
# - S. Li and others, [*PyTorch Distributed*](https://arxiv.org/abs/2006.15704) (2020): how DDP uses
#   all_reduce.
#
# In PyTorch's documentation:
#
# - [`all_reduce`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_reduce)
# - [`ReduceOp`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.ReduceOp)
#
# Next lesson: [broadcast](../notebooks/broadcast.ipynb), which gives every rank the tensor of one
# rank.
