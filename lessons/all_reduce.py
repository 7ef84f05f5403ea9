# %% [markdown]
"""
# all_reduce: every rank gets the sum of all ranks' tensors

`all_reduce` adds up one tensor of every rank, and every rank gets the sum.

In [start](../notebooks/start.ipynb), copies of a model stayed one model because they averaged their
gradients before each step. `all_reduce` brings that average: you divide its sum by the number of
ranks. At the end of this lesson you can write this step for four ranks and get the model of one
process, and you know when a mean of means is wrong.

    python lessons/all_reduce.py
    torchrun --nproc-per-node 4 lessons/all_reduce.py
"""

# %%
from collectives import check, run
import torch
import torch.distributed as dist

# %% [markdown]
# ## The call
#
# ```python
# dist.all_reduce(tensor, op=SUM, group=None, async_op=False)
# ```
#
# | argument | meaning |
# |---|---|
# | `tensor` | what this rank contributes; afterwards, the result |
# | `op` | the [reduction](../docs/glossary.md#reduction): SUM, AVG, MIN, MAX, PRODUCT |
# | `group` | the ranks that take part; None is all of them |
# | `async_op` | True: return a [`Work`](../docs/glossary.md#work), and finish in its `wait()` |
#
# The call works in place: `tensor` is the input, and afterwards the output, on every rank.


# %%
def all_reduce(rank, world_size, device):
    x = torch.tensor([1, 2], device=device) * 10**rank
    before = x.clone()
    dist.all_reduce(x, op=dist.ReduceOp.SUM)

    highest = before.clone()
    dist.all_reduce(highest, op=dist.ReduceOp.MAX)
    # proof
    ones = (10**world_size - 1) // 9  # 1 + 10 + 100 + ... = 11...1
    check(x, torch.tensor([ones, 2 * ones]), "all_reduce(SUM)")
    check(highest, torch.tensor([1, 2]) * 10 ** (world_size - 1), "all_reduce(MAX)")
    return {"before": before, "SUM": x, "MAX": highest}


# %%
if __name__ == "__main__":
    run(all_reduce)

# %% [markdown]
# Every reduction is element-wise. Each rank contributes one digit to a sum; rank 0's is the
# rightmost. In the notebook's picture (or `collectives run all_reduce --picture`) each colour is a
# rank, so you can see that every rank's number is in every sum, while a maximum is one rank's.
#
# **Write it yourself**, in your [folder of exercises](../README.md#exercises). Ranks that saw more
# samples count more in this mean:
#
# ```sh
# collectives practice weighted_mean
# ```

# %% [markdown]
# ### A training step on all ranks
#
# The model is that of start: one weight, whose target is 3, and every rank starts at 1. Each rank
# computes the gradient of two samples of its own. `all_reduce` and the division turn the
# ranks' gradients into their mean, and because all ranks have equally many samples, this mean is
# the gradient of all samples.
#
# Why SUM and a division, when there is AVG? AVG would do here. But the backends refuse it for
# integers, such as counts. And as soon as ranks have different numbers of samples, the mean of
# their means is wrong: then you reduce sums and counts, and divide.

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
    # proof: one process with all samples; the gradient of a sample s is 2 (weight - 3) s * s
    by_rank = (-4 * samples.view(-1, 2) ** 2).mean(1)
    check(own, by_rank[rank : rank + 1], "the gradient of two samples", rtol=1e-6)
    alone = torch.ones(1, device=device, requires_grad=True)
    ((alone * samples - 3 * samples) ** 2).mean().backward()
    one_process = alone.detach() - 0.01 * alone.grad
    check(weight.detach(), one_process, "the weight of one process", rtol=1e-6)
    return {"own gradient": own, "mean": weight.grad, "weight": weight.detach()}


# %%
if __name__ == "__main__":
    run(training_step, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 2.02 on both. The mean of the gradients is -102, so every rank takes the same step, from 1 to 1 +
# 1.02. One process and two got the same weight in start, because the eight samples are the same.
# With a real model, [a loop](../notebooks/route/one_mean.ipynb) makes this call for each parameter,
# or [DDP](../notebooks/route/wrapped_in_ddp.ipynb) does it in `backward()`.
#
# </details>

# %% [markdown]
# More to write: `collectives practice accuracy_over_unequal_shards`; `collectives practice
# overlap`, with `async_op`; and, once you know [reduce](../notebooks/reduce.ipynb), `collectives
# practice all_reduce_from_two_calls`.

# %%
STEPS = [all_reduce, training_step]

# %% [markdown]
# ## Pitfalls
#
# - Every rank must pass the same reduction, dtype and number of elements. gloo does not compare the
#   reductions: one MAX among SUMs gives [wrong numbers](../notebooks/mistakes/arguments.ipynb), and
#   no error.
# - If you read the tensor [before `wait()`](../notebooks/mistakes/buffers.ipynb), you may see half
#   a sum.
# - The bitwise BAND, BOR and BXOR are for integers only. [Backends](../docs/backends.md) lists what
#   each backend refuses.

# %% [markdown]
# ## On GPUs
#
# - `wait()` does not stop the CPU: it makes the current [stream](../docs/glossary.md#stream) wait
#   (`torch/distributed/_functional_collectives.py`: "Waiting follows device semantics, which means
#   blocking on CPU and synchronizing streams on CUDA.").
# - NCCL has PREMUL_SUM (`torch/distributed/fsdp/_fully_shard/_fully_shard.py`: "a custom reduce op
#   using NCCL's PreMulSum, which allows multiplying by the factor before reduction").

# %% [markdown]
# ## Change and try
#
# Make one change, run its cell and the next one, and undo it.
#
# 1. In `all_reduce`, change `dist.all_reduce(x,` to `dist.all_reduce(x.clone() if rank == 2 else
#    x,`. Rank 2 passes a copy. Which ranks get the sum in `x`?
#
#    <details><summary>Answer</summary>
#
#    You get `rank 2/4: got [100, 200], should be [1111, 2222] [all_reduce(SUM), int64[2], gloo]`.
#    All other ranks get the sum. That of rank 2 is in the copy.
#
#    </details>

# %% [markdown]
# ## Read on
#
# In PyTorch's documentation:
#
# - [`all_reduce`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_reduce)
# - [`ReduceOp`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.ReduceOp)
#
# The average keeps copies equal that start equal. Next lesson:
# [broadcast](../notebooks/broadcast.ipynb), which makes them start equal.
