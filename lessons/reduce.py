# %% [markdown]
"""
# reduce: one rank gets the sum of all ranks' tensors

`reduce` adds up one tensor of every rank, and one rank, the [root](../docs/glossary.md#root), gets
the sum.

Each rank has the loss of its own batch, but the log should show one number, and only rank 0 writes
the log. At the end of this lesson you can bring the numbers of a whole job to rank 0, among them
its speed, which is not the sum of the ranks' speeds.

    python lessons/reduce.py
    torchrun --nproc-per-node 4 lessons/reduce.py
"""

# %%
from collectives import check, note_calls, run
import torch
import torch.distributed as dist

# %% [markdown]
# ## The call
#
# ```python
# dist.reduce(tensor, dst=None, op=SUM, group=None, async_op=False, group_dst=None)
# ```
#
# | argument | meaning |
# |---|---|
# | `tensor` | what this rank contributes; afterwards, on the root, the result |
# | `dst` | the root: its rank in the whole job |
# | `op` | the reduction: SUM, AVG, MIN, MAX, PRODUCT |
# | `group` | the ranks that take part; None is all of them |
# | `async_op` | True: return a [`Work`](../docs/glossary.md#work) at once |
# | `group_dst` | the root's rank in the group, in place of `dst` |
#
# `dst` names the root, and `op` is the [reduction](../docs/glossary.md#reduction), as in
# [all_reduce](../notebooks/all_reduce.ipynb). On the root, `x` is first the input and then the
# output.


# %%
def reduce(rank, world_size, device):
    calls = note_calls()  # what this rank calls from here on
    root = world_size - 1
    x = torch.tensor([1, 2], device=device) * 10**rank
    before = x.clone()
    dist.reduce(x, dst=root, op=dist.ReduceOp.SUM)
    # proof: on the root, because the call promises nothing to the others
    ones = (10**world_size - 1) // 9  # 1 + 10 + 100 + ... = 11...1
    if rank == root:
        check(x, torch.tensor([ones, 2 * ones]), "reduce(SUM)")
    check([call.name for call in calls], ["reduce"], "one call, and only the root gets the sum")
    return {"before": before, "after": x if rank == root else None}


# %%
if __name__ == "__main__":
    run(reduce)

# %% [markdown]
# Four ranks print this:
#
# | rank | before | after |
# |---|---|---|
# | 0 | [1, 2] | - |
# | 1 | [10, 20] | - |
# | 2 | [100, 200] | - |
# | 3 | [1000, 2000] | [1111, 2222] |
#
# In the picture, the cells of the root have the colours of all four ranks, because every rank's
# number is in its sum. But look at the other three ranks: their tensors have changed, too.

# %% [markdown]
# ### What the other ranks have afterwards
#
# Only the root has a result. On every other rank the content of the tensor is *undefined* after the
# call, because a [backend](../docs/glossary.md#backend) may use it for intermediate results. With
# gloo it is a partial sum. So treat this tensor as lost, and if you reduce in a loop, fill it again
# in each round.

# %% [markdown]
# **Predict first.** Now rank 0 is the root and gets 1111. Which of the other three ranks has the
# smallest number afterwards: the one next to the root, or the one farthest from it?


# %%
def what_is_left(rank, world_size, device):
    own = torch.tensor([10**rank], device=device)
    x = torch.empty_like(own)
    rounds = []
    for _ in range(2):
        x.copy_(own)  # subtle: without this line, the second round adds what the first one left
        dist.reduce(x, dst=0)
        rounds.append(x.item())
    # proof
    ones = (10**world_size - 1) // 9
    check(rounds if rank == 0 else None, [ones] * 2 if rank == 0 else None, "reduce(SUM), twice")
    return {"own": own, "x after each round": rounds}


# %%
if __name__ == "__main__":
    run(what_is_left, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# The farthest, rank 3, with 1000. gloo adds up a tensor this small from rank 3 to rank 0, and each
# rank keeps the sum as it was there: 1000, 1100, 1110, 1111. Without `x.copy_(own)`, the second
# round would add up these numbers, as the first change below shows.
#
# </details>

# %% [markdown]
# ### The speed of the job
#
# Now to the number in the log that no rank knows by itself: the tokens per second of the whole job.
# The ranks had 8, 16, 32 and 64 tokens and took 1, 2, 4 and 8 seconds, so each of them reached 8
# tokens per second. But the step ends only when the slowest rank has finished, which is why the
# speed of the job is the SUM of the tokens, divided by the MAX of the seconds.

# %% [markdown]
# **Predict first.** Four ranks reach 8 tokens per second each. How many does the job reach?


# %%
def speed_of_the_job(rank, world_size, device):
    calls = note_calls()  # what this rank calls from here on
    tokens = torch.tensor(8.0 * 2**rank, device=device)
    seconds = torch.tensor(1.0 * 2**rank, device=device)
    own_speed = tokens / seconds
    dist.reduce(tokens, dst=0, op=dist.ReduceOp.SUM)
    dist.reduce(seconds, dst=0, op=dist.ReduceOp.MAX)
    speed = (tokens / seconds).item() if rank == 0 else None
    # proof: 1 + 2 + 4 + ... is one less than the next power of two
    expected = 8 * (2**world_size - 1) / 2 ** (world_size - 1)
    check(speed, expected if rank == 0 else None, "reduce(SUM) and reduce(MAX)")
    check([call.name for call in calls], ["reduce", "reduce"], "only the root gets the speed")
    return {"own speed": own_speed, "speed of the job": speed}


# %%
if __name__ == "__main__":
    run(speed_of_the_job, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 15, and not 4 * 8 = 32: the ranks had 8 + 16 + 32 + 64 = 120 tokens, but the slowest took 8
# seconds, and the other three wait for it.
#
# </details>

# %%
STEPS = [reduce, what_is_left, speed_of_the_job]

# %% [markdown]
# ## The cost
#
# S is the size of the tensor in bytes. In a [chain](../docs/glossary.md#chain) each rank adds its
# own tensor to what it receives, and sends the sum to the next rank. That takes n - 1 steps, and
# every rank but the root sends S bytes. A [tree](../docs/glossary.md#tree) takes only about log2(n)
# steps, so it is better for small tensors.
#
# If all ranks need the sum, use `all_reduce`. `reduce` and then `broadcast` send about as many
# bytes, but the broadcast starts only when the whole sum is complete.
#
# Measured on gloo, four ranks on two cores, 16 MiB (`collectives bench bus reduce -n 4 -b 4KiB -e
# 16MiB -f 4096`): `reduce` takes 25 ms and `broadcast` 18, together 1.4 times the 31 ms of
# `all_reduce`. The lesson [tree](../notebooks/algorithms/tree.ipynb) builds all three.

# %% [markdown]
# ## Pitfalls
#
# - [Only the root may read the result](../notebooks/mistakes/buffers.ipynb). On another rank the
#   tensor may have its old numbers, a partial sum or even the right answer, as on rank 0 in the
#   first picture, so a mistake is easily overlooked.
# - Every rank must name [the same root](../notebooks/mistakes/arguments.ipynb). gloo does not
#   compare the roots, so where they differ, some rank waits until the time limit.
# - `dst` has no default.

# %% [markdown]
# ## On GPUs
#
# - NCCL writes the result into a buffer of the root, and promises the other ranks nothing
#   ([ncclReduce](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api/colls.html)).

# %% [markdown]
# ## Where it is used
#
# Most sums in training are needed on all ranks, so `all_reduce` and `reduce_scatter` are far more
# frequent. `reduce` is for logs and progress bars, which one rank writes.

# %% [markdown]
# ## Change and try
#
# Make one change, run its cell and the next one, and undo it.
#
# 1. In `what_is_left`, change `torch.empty_like(own)` to `own.clone()` and `x.copy_(own)` to
#    `pass`. Now `x` is filled once, before the first round. What is the second sum?
#
#    <details><summary>Answer</summary>
#
#    You get `rank 0/4: got [1111, 4321], should be [1111, 1111] [reduce(SUM), twice, gloo]`. The
#    second round adds what the first one has left, 1111 + 1110 + 1100 + 1000, so it counts rank 3
#    four times.
#
#    </details>
#
# 2. In `speed_of_the_job`, change `op=dist.ReduceOp.MAX` to `op=dist.ReduceOp.SUM`. Which speed
#    does the root compute?
#
#    <details><summary>Answer</summary>
#
#    You get `rank 0/4: got 8.0, should be 15.0 [reduce(SUM) and reduce(MAX), gloo]`: 120 tokens in
#    1 + 2 + 4 + 8 = 15 seconds, as if the ranks had worked one after the other.
#
#    </details>

# %% [markdown]
# ## Write it yourself
#
# In your folder of [exercises](../README.md#exercises):
#
# ```sh
# collectives practice all_reduce_from_two_calls
# collectives practice reduce_on_any_root
# collectives practice reduce_scatter_from_reduces
# collectives practice slowest_rank
# ```

# %% [markdown]
# ## Read on
#
# - R. Rabenseifner, *Optimization of Collective Reduction Operations* (2004): when trees are best
#   for `reduce` and `all_reduce`, and when halving.
# - gloo's own [reduce.cc](https://github.com/pytorch/gloo/blob/main/gloo/reduce.cc): the ranks add
#   up in a ring, and the root collects the pieces.
#
# In PyTorch's documentation:
#
# - [`reduce`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.reduce)
# - [`ReduceOp`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.ReduceOp)
#
# A sum hides what each rank contributed. Next lesson: [gather](../notebooks/gather.ipynb), in which
# the root gets the tensors themselves.
