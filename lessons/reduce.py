# %% [markdown]
"""
# reduce

Rank 0 writes the log, and no other rank needs the numbers in it. `reduce` adds up one tensor of
every rank, and leaves the sum on one rank, the root.

You will see the sum; what the other ranks are left with, and the loop that goes wrong because of
it; and the speed of a whole job, which is not the sum of the ranks' speeds.

    python lessons/reduce.py
    torchrun --nproc-per-node 4 lessons/reduce.py
"""

# %%
from collectives import check
from collectives.lesson import run
import torch
import torch.distributed as dist

# %% [markdown]
# ## The call
#
# `dst` is the root, the rank that gets the result. `op` is the reduction, as in `all_reduce`. On
# the root `x` is the input, and afterwards the output.


# %%
def reduce(rank, world_size, device):
    root = world_size - 1
    x = torch.tensor([1, 2], device=device) * 10**rank
    before = x.clone()
    dist.reduce(x, dst=root, op=dist.ReduceOp.SUM)
    # proof: on the root, because the call promises nothing to the others
    ones = (10**world_size - 1) // 9  # 1 + 10 + 100 + ... = 11...1
    if rank == root:
        check(x, torch.tensor([ones, 2 * ones]), "reduce(SUM)")
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
# Each digit comes from one rank: the last from rank 0, the first from rank 3. In the picture, look
# at the root first: its cells have the colours of all four ranks. Then look at the others. Their
# tensors have changed, too.

# %% [markdown]
# ### What the other ranks are left with
#
# The tensor of a rank that is not the root is *undefined* afterwards: the backend may have used it
# as scratch paper. On gloo the other ranks hold partial sums, and another backend may leave
# something else. So treat that tensor as lost. If you reduce in a loop, fill it anew each time.


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


# %% [markdown]
# **Predict first.** Now rank 0 is the root and gets 1111. Suppose that the line with `x.copy_`
# stood in front of the loop. Then the second round would add up what the first one left: 1111 on
# rank 0, and partial sums on the others. Which sum would rank 0 get? The picture above helps with
# ranks 1 and 2; rank 3 still has its own 1000. Write the number down.

# %%
if __name__ == "__main__":
    run(what_is_left)

# %% [markdown]
# <details><summary>Answer</summary>
#
# It would be 4321, from 1111 + 1110 + 1100 + 1000. The number of rank 3 counts four times, because
# it is in every partial sum. You can see these leftovers in the table and in the picture. The
# second change at the end of this lesson makes the mistake.
#
# </details>

# %% [markdown]
# ### The speed of the job
#
# For the log we want tokens per second. Each rank knows how many tokens it had and how many seconds
# it took. Here the ranks had 8, 16, 32 and 64 tokens and took 1, 2, 4 and 8 seconds, so each of
# them reaches 8 tokens per second by itself. The step ends when the slowest rank has finished. So
# the job's speed is the SUM of the tokens, divided by the MAX of the seconds. `tokens` and
# `seconds` are made for these calls, and nothing is lost when the calls overwrite them.


# %%
def speed_of_the_job(rank, world_size, device):
    tokens = torch.tensor(8.0 * 2**rank, device=device)
    seconds = torch.tensor(1.0 * 2**rank, device=device)
    own_speed = tokens / seconds
    dist.reduce(tokens, dst=0, op=dist.ReduceOp.SUM)
    dist.reduce(seconds, dst=0, op=dist.ReduceOp.MAX)
    speed = (tokens / seconds).item() if rank == 0 else None
    # proof: 1 + 2 + 4 + ... is one less than the next power of two
    expected = 8 * (2**world_size - 1) / 2 ** (world_size - 1)
    check(speed, expected if rank == 0 else None, "reduce(SUM) and reduce(MAX)")
    return {"own speed": own_speed, "speed of the job": speed}


# %% [markdown]
# **Predict first.** Four ranks reach 8 tokens per second each. How many does the job reach? Write
# it down.

# %%
if __name__ == "__main__":
    run(speed_of_the_job)

# %% [markdown]
# <details><summary>Answer</summary>
#
# It is 15, not 32: there are 120 tokens, and they take 8 seconds. The other three ranks wait for
# the slowest one. A speed is a quotient, so reduce its two parts, and divide on the root.
#
# </details>

# %%
STEPS = [reduce, what_is_left, speed_of_the_job]

# %% [markdown]
# ## The cost
#
# S is the size of the tensor in bytes. In a chain each rank adds its own tensor to what arrives,
# and passes the result on: n - 1 steps, in which every rank but the root sends S bytes. If the
# tensor is cut into small pieces, all links work at the same time. A tree takes about log2(n)
# steps, which is better for small tensors. In memory, the call needs the tensor, and a copy of it
# where a rank wants to keep its numbers.
#
# In a ring `all_reduce` each rank sends 2 (n - 1) / n * S bytes, almost twice as much with many
# ranks. If only one rank reads the sum, use `reduce`. If all ranks read it, use `all_reduce`: with
# `reduce` and then `broadcast`, the links carry S bytes twice, one call after the other.
#
# Bus-bandwidth factor: `1`. Every rank but the root has to send each byte once, so the algorithm
# bandwidth is already what the links carry.

# %% [markdown]
# ## Pitfalls
#
# - [Only the root may read the result](../notebooks/mistakes/buffers.ipynb). Elsewhere the tensor
#   may hold its old numbers, a partial sum, or even the right answer: in the first picture, rank 0
#   has it. A program that reads the wrong rank may look right for a long time.
# - Every rank must name [the same root](../notebooks/mistakes/arguments.ipynb). gloo does not
#   compare the roots, and some rank waits until the time limit.
# - `dst` has no default.

# %% [markdown]
# ## Where it is used
#
# Numbers for a log or a progress bar, which one rank writes. In training, most sums are needed on
# all ranks, so you will see `all_reduce` and `reduce_scatter` far more often.

# %% [markdown]
# ## Change and try
#
# Each of these is one change in one cell. Make it, run that cell and the one after it, and undo it.
#
# 1. In `reduce`, change `if rank == root:` to `if rank >= 0:`. Now every rank claims to have the
#    sum. Which ranks are wrong, and what is missing there?
#
#    <details><summary>Answer</summary>
#
#    You get `should be [1111, 2222]`, from rank 1 with 1110 or from rank 2 with 1100, whichever is
#    first. Rank 0 passes: on gloo it has the whole sum here, though nobody promised that.
#
#    </details>
#
# 2. In `what_is_left`, change `torch.empty_like(own)` to `own.clone()` and `x.copy_(own)` to
#    `pass`. Now `x` is filled once, before the first round. Is it 4321?
#
#    <details><summary>Answer</summary>
#
#    You get `got [1111, 4321], should be [1111, 1111]`. There is no error besides the proof.
#
#    </details>

# %% [markdown]
# ## Write it yourself
#
# Write `my_all_reduce(x)`, which leaves the sum on every rank, in place. Use `reduce` and
# `broadcast`, and nothing else.
#
# <details><summary>One way to write it</summary>
#
# ```python
# def my_all_reduce(x):
#     dist.reduce(x, dst=0)
#     dist.broadcast(x, src=0)  # it also overwrites what the reduction left on the others
#
#
# def try_my_all_reduce(rank, world_size, device):
#     x = torch.tensor([1, 2], device=device) * 10**rank
#     my_all_reduce(x)
#     ones = (10**world_size - 1) // 9
#     check(x, torch.tensor([ones, 2 * ones]), "my_all_reduce")
#     return {"x": x}
# ```
#
# </details>

# %% [markdown]
# ## Read on
#
# - R. Rabenseifner, *Optimization of Collective Reduction Operations* (2004): how to choose between
#   trees and halving for `reduce` and `all_reduce`.
# - [pytorch#21480](https://github.com/pytorch/pytorch/issues/21480): users meet the overwritten
#   tensors.
# - gloo's own [reduce.cc](https://github.com/pytorch/gloo/blob/main/gloo/reduce.cc): the ranks add
#   up in a ring, which leaves the partial sums, and the root collects the pieces.
#
# In PyTorch's documentation:
#
# - [`reduce`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.reduce)
# - [`ReduceOp`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.ReduceOp)
# - [`broadcast`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.broadcast)
#
# Next lesson: [gather](../notebooks/gather.ipynb), which brings the tensors to one rank and keeps
# them apart.
