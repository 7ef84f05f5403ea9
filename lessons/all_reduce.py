# %% [markdown]
"""
# all_reduce

Four GPUs train one model, each on its own data, and all of them need the average of the four
gradients. `all_reduce` adds up one tensor of every rank, and leaves the sum on every rank.

You will see the sum; a training step on four ranks that equals the step of one process on all the
data, to the last bit; the mean of means, which is wrong; averages, also of integers; a softmax over
all ranks; and a sum that runs in the background.

    python lessons/all_reduce.py
    torchrun --nproc-per-node 4 lessons/all_reduce.py
"""

# %%
import copy
from collectives import check
from collectives.lesson import run
import torch
import torch.distributed as dist

# %% [markdown]
# ## The call
#
# `all_reduce` works in place: `x` is the input, and afterwards the output. `op` names the
# reduction. SUM is the default; the others are AVG, MIN, MAX, PRODUCT, and for integers also the
# bitwise BAND, BOR and BXOR.


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
# The sum is taken element by element. Each digit comes from one rank: the last from rank 0, the one
# before it from rank 1. If a rank were left out, its digit would be 0. In the picture each colour
# is a rank: every cell on the right has all four.

# %% [markdown]
# ### A training step on all ranks
#
# The model has one weight and computes `weight * x`. It should become 3. The weight starts at 1 on
# every rank: all ranks must start alike. Each rank takes two of the samples, and `backward()` gives
# it the gradient of its own two. `all_reduce` and the division turn the four gradients into their
# mean. Because all ranks hold equally many samples, that is the gradient of the whole batch. So
# every rank takes the step that one process with all the data would take. The weights stay equal,
# although nobody ever sends a weight.
#
# A real model has many parameters. Then a loop makes this call for each of them, as the chapter on
# [training](../notebooks/training/data_parallel.ipynb) does.


# %%
def training_step(rank, world_size, device):
    model = torch.nn.Linear(1, 1, bias=False, dtype=torch.float64, device=device)
    torch.nn.init.ones_(model.weight)
    alone = copy.deepcopy(model)
    samples = torch.arange(1.0, 2 * world_size + 1, dtype=torch.float64, device=device).reshape(
        -1, 1
    )

    mine = samples[2 * rank : 2 * rank + 2]
    torch.nn.functional.mse_loss(model(mine), 3 * mine).backward()
    gradient = model.weight.grad
    own = gradient.item()
    dist.all_reduce(gradient, op=dist.ReduceOp.SUM)
    gradient /= world_size
    with torch.no_grad():
        model.weight -= 0.01 * gradient
    # proof: one process with all samples; small whole numbers add up without rounding, in any order
    torch.nn.functional.mse_loss(alone(samples), 3 * samples).backward()
    expected = alone.weight.detach() - 0.01 * alone.weight.grad
    check(model.weight, expected.cpu(), "the weight of one process")
    return {"own gradient": own, "mean": gradient.item(), "new weight": model.weight.item()}


# %% [markdown]
# **Predict first.** The ranks' own gradients are -10, -50, -122 and -226. With a learning rate of
# 0.01, what is the new weight on rank 0, and on rank 3? Write down both numbers.

# %%
if __name__ == "__main__":
    run(training_step)

# %% [markdown]
# <details><summary>Answer</summary>
#
# It is 2.02 on both. The call leaves the sum of the gradients, -408, on every rank; divided by 4 it
# is -102. So every rank takes the same step from 1 to 1 + 1.02. Alone, rank 0 would have gone to
# 1.1 and rank 3 to 3.26. This is what DistributedDataParallel (DDP) does in every `backward()`.
#
# </details>

# %% [markdown]
# ### The mean of means
#
# Rank r holds r + 1 numbers: rank 0 holds 1; rank 1 holds 1, 2; rank 2 holds 1, 2, 3. We want the
# mean of all numbers, and their norm, which is the root of the sum of their squares. A mean is the
# sum of the values divided by their count. So put three sums into one tensor, of the squares, the
# values and the counts, and reduce it once.


# %%
def norm_and_mean(rank, world_size, device):
    values = torch.arange(1.0, rank + 2, dtype=torch.float64, device=device)
    sums = torch.stack([values.square().sum(), values.sum(), torch.ones_like(values).sum()])
    dist.all_reduce(sums, op=dist.ReduceOp.SUM)
    norm, mean = sums[0].sqrt(), sums[1] / sums[2]
    # proof
    n = world_size
    squares = torch.tensor(n * (n + 1) ** 2 * (n + 2) / 12, dtype=torch.float64)
    check(norm, squares.sqrt(), "norm by all_reduce(SUM)")
    check(mean, torch.tensor((n + 2) / 3, dtype=torch.float64), "mean by all_reduce(SUM)")
    return {"own": values, "own mean": values.mean(), "norm": norm, "mean": mean}


# %% [markdown]
# **Predict first.** The ranks' own means are 1, 1.5, 2 and 2.5, and the mean of these four is 1.75.
# What is the mean of all ten numbers? Write it down.

# %%
if __name__ == "__main__":
    run(norm_and_mean)

# %% [markdown]
# <details><summary>Answer</summary>
#
# It is 2: the sum is 20, of ten numbers. The mean of means counts every rank alike, so the one
# number of rank 0 weighs as much as the four of rank 3 together. The same happens if you average
# the losses, gradients or accuracies of ranks that hold unequal counts.
#
# </details>

# %% [markdown]
# ### AVG, also of integers
#
# AVG is the sum divided by the number of ranks. gloo has it for floating-point numbers, and refuses
# it for integers; other backends may not have it at all. What works everywhere is SUM and a
# division, in a type that can hold a fraction. If AVG raises an error, begin again with a fresh
# copy: gloo adds up first and fails at the division, so the tensor may already hold the sum.


# %%
def averages(rank, world_size, device):
    x = torch.tensor([1.0, 2.0], dtype=torch.float64, device=device) * 10**rank
    average = x.clone()
    try:
        dist.all_reduce(average, op=dist.ReduceOp.AVG)
    except (RuntimeError, ValueError):  # this backend has no AVG
        average = x.clone()
        dist.all_reduce(average, op=dist.ReduceOp.SUM)
        average /= world_size

    count = torch.tensor([3, 4], device=device) * 10**rank  # int64
    quotient = count.double()
    dist.all_reduce(quotient, op=dist.ReduceOp.SUM)
    quotient /= world_size
    # proof
    means = torch.arange(1.0, 5, dtype=torch.float64) * ((10**world_size - 1) // 9) / world_size
    check(average, means[:2], "all_reduce(AVG)")
    check(quotient, means[2:], "all_reduce(SUM) / world size")
    return {"own": x, "AVG": average, "own integers": count, "SUM / n": quotient}


# %%
if __name__ == "__main__":
    run(averages)

# %% [markdown]
# ### A softmax over all ranks
#
# A large vocabulary can be cut among the ranks: each rank then holds some of the logits, here two.
# A softmax that does not overflow subtracts the largest of *all* logits (MAX), and divides by the
# sum of all exponentials (SUM). That takes two reductions of one number each, however many logits
# there are. The exponentials here are powers of two, because these are easy to check.


# %%
def softmax(rank, world_size, device):
    logits = torch.tensor([2.0 * rank + 1, 2.0 * rank + 2], device=device)  # to base 2
    highest = logits.max()
    dist.all_reduce(highest, op=dist.ReduceOp.MAX)
    exponentials = torch.exp2(logits - highest)
    total = exponentials.sum()
    dist.all_reduce(total, op=dist.ReduceOp.SUM)
    probabilities = exponentials / total
    # proof: 1 + 2 + 4 + ... is one less than the next power of two
    whole = torch.exp2(torch.arange(2.0 * world_size)) / (2.0 ** (2 * world_size) - 1)
    check(probabilities, whole[2 * rank : 2 * rank + 2], "softmax over all ranks", rtol=1e-6)
    return {"logits": logits, "probabilities": probabilities}


# %%
if __name__ == "__main__":
    run(softmax)

# %% [markdown]
# ### In the background
#
# With `async_op=True` the call returns a `Work` immediately, and the ranks exchange the data while
# your program goes on. Until `wait()` returns, the tensor belongs to the backend: do not read it,
# and do not write to it.
#
# On CUDA even `wait()` returns immediately (documented). It only tells the GPU to finish the sum
# before later work on the current stream. Reading the value on the CPU, as `.item()` does, waits
# for it.


# %%
def in_the_background(rank, world_size, device):
    gradient = torch.full((4,), rank + 1, device=device)
    work = dist.all_reduce(gradient, async_op=True)
    product = torch.ones(64, 64) @ torch.ones(64, 64)  # any work that does not touch `gradient`
    work.wait()
    # proof
    total = world_size * (world_size + 1) // 2
    check(gradient, torch.full((4,), total), "all_reduce(SUM, async_op=True)")
    return {"product": product[0, 0], "after wait()": gradient}


# %%
if __name__ == "__main__":
    run(in_the_background)

# %%
STEPS = [all_reduce, training_step, norm_and_mean, averages, softmax, in_the_background]

# %% [markdown]
# ## The cost
#
# S is the size of the tensor in bytes. Which rank sends what to whom is the choice of the backend.
# Two ways are common:
#
# - A *ring*: each rank sends only to the next one. The tensor is cut into n pieces. In n - 1 rounds
#   every piece travels around and collects the sum; in n - 1 more rounds the sums travel around.
#   Every rank sends 2 (n - 1) / n * S bytes: S bytes with two ranks, and never more than 2 S.
# - A *tree*: half of the ranks send to the other half, then half of these to the rest, and so on,
#   and the sum comes back the same way. That is about 2 log2(n) rounds, which is better for small
#   tensors. NCCL uses two trees at once since 2.4, which is also good for large ones (documented).
#
# In memory, the call needs nothing beyond the tensor and the buffers of the backend.
#
# Bus-bandwidth factor: `2 * (n - 1) / n`. S / time is called the algorithm bandwidth. Multiply it
# by this factor to compare it with the bytes per second that a link between two ranks can carry.

# %% [markdown]
# ## Pitfalls
#
# - Every rank must name the same reduction. gloo does not compare them: one MAX among SUMs gives
#   [wrong numbers on every rank](../notebooks/mistakes/arguments.ipynb), and no error.
# - Every rank must bring the same number of elements, [of the same
#   dtype](../notebooks/mistakes/arguments.ipynb).
# - A sum that you divide by the number of ranks is the mean of the *ranks*. Where ranks hold
#   unequal counts, reduce the counts too.
# - Code that reads or writes the tensor [before `wait()`](../notebooks/mistakes/buffers.ipynb) may
#   see half a sum.
# - A sum of floating-point numbers depends on the order of the additions. The backend chooses it,
#   so another backend may give another last bit.
# - On CUDA the call returns before the sum is there (documented).

# %% [markdown]
# ## Where it is used
#
# DistributedDataParallel (DDP) averages gradients with it while `backward()` still runs; it packs
# many small gradients into one call. Tensor parallelism cuts a layer among the ranks and sums the
# partial products. Evaluation sums the right answers and the examples. Clipping by the global norm
# needs the norm of all gradients.

# %% [markdown]
# ## Change and try
#
# Each of these is one change in one cell. Make it, run that cell and the one after it, and undo it.
#
# 1. In `all_reduce`, change `op=dist.ReduceOp.SUM` to `op=dist.ReduceOp.MAX if rank == 0 else
#    dist.ReduceOp.SUM`. One rank asks for another reduction. Is it refused?
#
#    <details><summary>Answer</summary>
#
#    You get `should be [1111, 2222]`. gloo does not compare the reductions, so only the proof
#    notices. Read the digits of the wrong number to see whose data is missing.
#
#    </details>
#
# 2. In `training_step`, change `gradient /= world_size` to `pass`. This is the sum in place of the
#    mean. Which weight do the ranks reach?
#
#    <details><summary>Answer</summary>
#
#    You get `got [[5.08]], should be [[2.02]]`. The step is four times too long, and the ranks
#    still agree with each other. Comparing the ranks would show nothing: compare with one process.
#
#    </details>
#
# 3. In `softmax`, change `dist.all_reduce(highest, op=dist.ReduceOp.MAX)` to `pass`. The highest
#    logit cancels out of the quotient. Is each rank's own highest as good?
#
#    <details><summary>Answer</summary>
#
#    You get `[softmax over all ranks, float32[2], gloo]`, with a wrong result. It cancels only if
#    all ranks subtract the same.
#
#    </details>

# %% [markdown]
# ## Write it yourself
#
# Write `accuracy(correct)`. `correct` holds True or False for each example of this rank, and every
# rank may have another number of examples; the result is the share of right answers among all of
# them, on every rank.
#
# <details><summary>One way to write it</summary>
#
# ```python
# def accuracy(correct):
#     both = [correct.sum(), len(correct)]
#     counts = torch.tensor(both, dtype=torch.float64, device=correct.device)
#     dist.all_reduce(counts, op=dist.ReduceOp.SUM)
#     return (counts[0] / counts[1]).item()
#
#
# def try_accuracy(rank, world_size, device):
#     correct = torch.arange(rank + 1, device=device) == 0  # one right answer among rank + 1
#     share = accuracy(correct)
#     check(share, 2 / (world_size + 1), "accuracy")
#     return {"correct": correct, "accuracy": share}
# ```
#
# </details>

# %% [markdown]
# ## Read on
#
# - P. Patarasuk and X. Yuan, *Bandwidth optimal all-reduce algorithms for clusters of workstations*
#   (2009): why a ring sends 2 (n - 1) / n of the tensor, and why nothing can send less.
# - S. Li and others, [*PyTorch Distributed*](https://arxiv.org/abs/2006.15704) (2020): how DDP uses
#   all_reduce.
# - [nccl-tests](https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md): where the
#   bus-bandwidth factors come from.
#
# In PyTorch's documentation:
#
# - [`all_reduce`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_reduce)
# - [`ReduceOp`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.ReduceOp)
#
# Next lesson: [broadcast](../notebooks/broadcast.ipynb), which gives every rank the tensor of one
# rank.
