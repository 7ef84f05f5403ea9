# %% [markdown]
"""
# all_reduce

Every rank gives a tensor, and every rank ends up with the sum (or maximum, product, ...) of all of them, in place.

A **rank** is one process of the job, and its number, from 0; the **world size**, n below, is how many there are. The **backend** is
the library that moves the bytes: gloo (CPU), NCCL (GPU) or MPI.

You will see the sum, the other reductions and what a backend does that lacks one, a reduction that runs in the background, and
three things that are built from it: a softmax, a norm and a weighted mean over data that no single rank holds.

    python lessons/all_reduce.py
    torchrun --nproc-per-node 4 lessons/all_reduce.py

To run it, clone the repository and type `make tour`; or, where you already have torch, `pip install -e '.[notebooks]'`.
"""

# %%
from collectives import check
from collectives.lesson import run
import torch
import torch.distributed as dist

# %% [markdown]
# ## Worked numbers
#
# Four ranks. Rank r starts with 1 and 2 times `10 ** r`; everyone ends with the element-wise sum. Each digit of a sum names a rank
# that is in it: the last digit rank 0, the one before it rank 1.
#
# | rank | before | after |
# |---|---|---|
# | 0 | [1, 2] | [1111, 2222] |
# | 1 | [10, 20] | [1111, 2222] |
# | 2 | [100, 200] | [1111, 2222] |
# | 3 | [1000, 2000] | [1111, 2222] |

# %% [markdown]
# ## The code
#
# `all_reduce` overwrites its argument: `x` is input and output at once.


# %%
def all_reduce(rank, world_size, device):
    x = torch.tensor([1, 2], device=device) * 10**rank
    before = x.clone()

    dist.all_reduce(x, op=dist.ReduceOp.SUM)

    ones = (10**world_size - 1) // 9  # 1 + 10 + 100 + ... = 11...1
    check(x, torch.tensor([ones, 2 * ones]), "all_reduce(SUM)")
    return {"before": before, "after": x}


# %%
if __name__ == "__main__":
    run(all_reduce)

# %% [markdown]
# ### Other reductions
#
# The reduction is applied element by element. Here the lowest, the highest and the product.


# %%
def reductions(rank, world_size, device):
    low, high, product = (torch.tensor([rank + 1], device=device) for _ in range(3))

    dist.all_reduce(low, op=dist.ReduceOp.MIN)
    dist.all_reduce(high, op=dist.ReduceOp.MAX)
    dist.all_reduce(product, op=dist.ReduceOp.PRODUCT)

    check(low, torch.tensor([1]), "all_reduce(MIN)")
    check(high, torch.tensor([world_size]), "all_reduce(MAX)")
    factorial = torch.arange(1, world_size + 1).prod().reshape(1)
    check(product, factorial, "all_reduce(PRODUCT)")
    return {"own": rank + 1, "MIN": low, "MAX": high, "PRODUCT": product}


# %%
if __name__ == "__main__":
    run(reductions)

# %% [markdown]
# ### AVG, and what to do where a backend lacks it
#
# AVG is a sum divided by the number of ranks. For integers a backend may refuse it (gloo does: the quotient is no integer), and a
# backend may not know it at all. What always works: SUM, then divide, in a type that can hold a quotient. Start again from a fresh
# copy: after a refusal the tensor may already hold the sum.


# %%
def averages(rank, world_size, device):
    x = torch.tensor([float(rank), 1.0], device=device)
    mean = x.clone()
    try:
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    except (RuntimeError, ValueError):  # this backend has no AVG
        mean = x.clone()
        dist.all_reduce(mean, op=dist.ReduceOp.SUM)
        mean /= world_size

    count = torch.tensor([rank, 1], device=device)  # int64
    exact = count.double()
    dist.all_reduce(exact, op=dist.ReduceOp.SUM)
    exact /= world_size

    middle = (world_size - 1) / 2
    check(mean, torch.tensor([middle, 1.0]), "all_reduce(AVG)")
    check(exact, torch.tensor([middle, 1.0], dtype=torch.float64), "all_reduce(SUM) / world size")
    return {"own": count, "mean": exact}


# %%
if __name__ == "__main__":
    run(averages)

# %% [markdown]
# ### In the background
#
# With `async_op=True` the call returns a `Work` at once. Until `wait()` the tensor belongs to the backend: neither read nor write
# it. Compute something else meanwhile. On CUDA `wait()` does not stop the host: it makes the current *stream* wait.


# %%
def in_the_background(rank, world_size, device):
    gradient = torch.full((4,), rank + 1, device=device)
    work = dist.all_reduce(gradient, async_op=True)
    meanwhile = sum(range(10))  # any work that does not touch `gradient`
    work.wait()

    total = world_size * (world_size + 1) // 2
    check(gradient, torch.full((4,), total), "all_reduce(SUM, async_op=True)")
    return {"meanwhile": meanwhile, "after wait()": gradient}


# %%
if __name__ == "__main__":
    run(in_the_background)

# %% [markdown]
# ### A softmax over all ranks
#
# Each rank holds two of the logits. A stable softmax needs the largest of *all* logits (MAX) and the sum of all exponentials (SUM):
# two reductions of one number each, however long the logits are. Here the exponentials are powers of two, so nothing is rounded.


# %%
def softmax(rank, world_size, device):
    logits = torch.tensor([2.0 * rank, 2.0 * rank + 1], device=device)  # to base 2

    highest = logits.max()
    dist.all_reduce(highest, op=dist.ReduceOp.MAX)
    exponentials = torch.exp2(logits - highest)
    total = exponentials.sum()
    dist.all_reduce(total, op=dist.ReduceOp.SUM)
    probabilities = exponentials / total

    entries = torch.arange(2.0 * world_size)
    whole = torch.exp2(entries) / (2.0 ** (2 * world_size) - 1)  # 1 + 2 + 4 + ... = 2**entries - 1
    check(probabilities, whole[2 * rank : 2 * rank + 2], "softmax by all_reduce(MAX), all_reduce(SUM)", rtol=1e-6)
    return {"logits": logits, "probabilities": probabilities}


# %%
if __name__ == "__main__":
    run(softmax)

# %% [markdown]
# ### A norm and a weighted mean
#
# Rank r holds the r + 1 numbers 0, 1, ..., r. Wanted: the norm and the mean of all numbers on all ranks. Sum what can be summed
# (squares; values; counts), and do the rest on every rank. One call carries all three sums.


# %%
def norm_and_mean(rank, world_size, device):
    values = torch.arange(rank + 1, dtype=torch.float64, device=device)  # rank r holds 0, 1, ..., r: unequal counts
    sums = torch.stack([values.square().sum(), values.sum(), torch.tensor(float(len(values)), dtype=torch.float64, device=device)])
    dist.all_reduce(sums, op=dist.ReduceOp.SUM)
    norm, mean = sums[0].sqrt(), sums[1] / sums[2]

    n = world_size
    squares = (n - 1) * n * n * (n + 1) / 12  # the sum over r < n of 0 + 1 + 4 + ... + r * r
    check(norm, torch.tensor(squares, dtype=torch.float64).sqrt(), "norm by all_reduce(SUM)", rtol=1e-12)
    check(mean, torch.tensor((n - 1) / 3, dtype=torch.float64), "mean by all_reduce(SUM)", rtol=1e-12)
    return {"own": values, "norm": norm, "mean": mean}


# %% [markdown]
# **Predict first.** The ranks' own means are 0, 0.5, 1 and 1.5, and the mean of these four is 0.75. Is that also the mean of all
# ten numbers?

# %%
if __name__ == "__main__":
    run(norm_and_mean)

# %% [markdown]
# **Why.** The mean of means counts every rank alike, and so a number on rank 0 four times as much as one on rank 3. To average the
# ranks' own losses, norms or accuracies is this same mistake whenever they hold unequal counts.

# %% [markdown]
# ### Compared with all_gather
#
# Gathering everybody's tensor and summing gives the same answer. Each rank has 1024 numbers of 4 bytes, which is 4096 bytes.


# %%
def memory_against_all_gather(rank, world_size, device):
    x = torch.full((1024,), rank, dtype=torch.float32, device=device)
    pieces = [torch.full_like(x, -1) for _ in range(world_size)]
    dist.all_gather(pieces, x)
    check(pieces, [torch.full((1024,), float(source)) for source in range(world_size)], "all_gather")
    gathered = torch.stack(pieces).sum(dim=0)

    dist.all_reduce(x)
    check(x, gathered.cpu(), "all_reduce(SUM)")
    check(x, torch.full((1024,), world_size * (world_size - 1) / 2), "all_reduce(SUM)")
    own = x.numel() * x.element_size()
    return {"bytes, all_reduce": own, "bytes, all_gather": sum(piece.numel() * piece.element_size() for piece in pieces)}


# %% [markdown]
# **Predict first.** How much memory does each rank need for what arrives: with `all_reduce`, and with `all_gather`?

# %%
if __name__ == "__main__":
    run(memory_against_all_gather)

# %% [markdown]
# **Why.** `all_reduce` works in place; to gather needs room for n tensors on every rank, and more with every rank that joins.

# %%
STEPS = [all_reduce, reductions, averages, in_the_background, softmax, norm_and_mean, memory_against_all_gather]

# %% [markdown]
# ## The proof
#
# Each step compares every element on every rank with a closed form. In the worked numbers the sums have one digit for each rank,
# `1 + 10 + 100 + ... = 11...1`: a rank left out or counted twice shows, and which one.

# %% [markdown]
# ## The cost
#
# For S bytes on n ranks, as a ring: 2 (n - 1) steps, in which every rank sends 2 (n - 1) / n * S bytes: almost twice the tensor,
# however many ranks there are. As a tree: about 2 log2(n) steps, better for small messages. In memory: nothing beyond the tensor
# itself, and the backend's own buffers.
#
# Bus-bandwidth factor: `2 * (n - 1) / n`. (Algorithm bandwidth is S / time; times this factor it can be compared with what the
# links can do.)

# %% [markdown]
# ## Pitfalls
#
# - Every rank must name the same reduction. One rank with MAX among others with SUM is no error on gloo: it is a wrong answer.
# - Every rank must bring the same shape and dtype.
# - Dividing a sum by the number of ranks is the mean of the *ranks*; where ranks hold unequal counts, reduce the counts too.
# - A sum of floating-point numbers depends on the order of addition, which the backend chooses: another backend, another last bit.
# - On CUDA the call returns before the sum is there; the stream knows, the host does not.

# %% [markdown]
# ## Where it is used
#
# DDP averages gradients with it, in buckets, while `backward()` still runs. Tensor parallelism sums partial products. Evaluation
# sums counts of right answers and of examples. Clipping by a global norm is the norm above.

# %% [markdown]
# ## Change and try
#
# Each of these is one change in one cell: make it, run that cell and the one after it, and undo it.
#
# 1. In `all_reduce`, change `op=dist.ReduceOp.SUM` to `op=dist.ReduceOp.MAX if rank == 0 else dist.ReduceOp.SUM`. One rank asks for
#    something else. Is it refused? Read what came out, digit by digit. It says `should be [1111, 2222]`: gloo compares nothing, and
#    no rank but the proof's notices.
# 2. In `averages`, change `torch.tensor([float(rank), 1.0], device=device)` to `torch.tensor([rank, 1], device=device)`. AVG of
#    integers: rounded down, or refused? gloo refuses, the way out sums, and then the quotient has no room in an integer tensor. It
#    says `result type Float can't be cast to the desired output type Long`.
# 3. In `softmax`, change `dist.all_reduce(highest, op=dist.ReduceOp.MAX)` to `pass`. The highest logit is only there to keep the
#    exponentials small, and it cancels out of the quotient. So is each rank's own highest as good? It says
#    `[softmax by all_reduce(MAX), all_reduce(SUM), float32[2], gloo]`: it cancels only if all ranks subtract the same.

# %% [markdown]
# ## Read on
#
# In PyTorch's documentation:
#
# - [`all_reduce`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_reduce)
# - [`all_gather`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_gather)
# - [`ReduceOp`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.ReduceOp)
#
# Next lesson: [reduce](../notebooks/reduce.ipynb), the same sum for one rank only.
