# %% [markdown]
"""
# reduce_scatter

Every rank gives n pieces, the pieces are summed over the ranks, and rank r ends up with the sum of all pieces number r.

A **rank** is one process of the job, and its number, from 0; the **world size**, n below, is how many there are. The **backend** is
the library that moves the bytes: gloo (CPU), NCCL (GPU) or MPI.

You will see the pieces as a list and as one tensor, another reduction than the sum, the proof that reduce_scatter followed by
all_gather is all_reduce, and an optimizer whose state is spread over the ranks.

    python lessons/reduce_scatter.py
    torchrun --nproc-per-node 4 lessons/reduce_scatter.py

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
# Four ranks. Rank r's piece k is k + 1 times `10 ** r`; rank k ends with the sum of everyone's piece k. The place of a digit names
# the rank that it came from, and the digit names the piece.
#
# | rank | before | after |
# |---|---|---|
# | 0 | [[1], [2], [3], [4]] | [1111] |
# | 1 | [[10], [20], [30], [40]] | [2222] |
# | 2 | [[100], [200], [300], [400]] | [3333] |
# | 3 | [[1000], [2000], [3000], [4000]] | [4444] |

# %% [markdown]
# ## The code
#
# The input is a list with one piece for each rank; the output is one piece. The inputs stay as they are.


# %%
def reduce_scatter(rank, world_size, device):
    pieces = [torch.tensor([(k + 1) * 10**rank], device=device) for k in range(world_size)]
    mine = torch.full((1,), -1, device=device)

    dist.reduce_scatter(mine, pieces, op=dist.ReduceOp.SUM)

    ones = (10**world_size - 1) // 9  # 1 + 10 + 100 + ... = 11...1
    check(mine, torch.tensor([(rank + 1) * ones]), "reduce_scatter(SUM)")
    check(pieces, [torch.tensor([(k + 1) * 10**rank]) for k in range(world_size)], "reduce_scatter: its input")
    return {"before": pieces, "after": mine}


# %%
if __name__ == "__main__":
    run(reduce_scatter)

# %% [markdown]
# ### One tensor, and another reduction
#
# `reduce_scatter_tensor` (2.13 adds the name `reduce_scatter_single`) takes the pieces end to end in one tensor: n times as long as
# the output in its first dimension. Here every rank keeps the sum and the maximum of the two columns that are its own.


# %%
def pieces_of_one_tensor(rank, world_size, device):
    x = 100 * rank + torch.arange(2 * world_size, device=device)
    total, highest = (torch.full((2,), -1, device=device) for _ in range(2))

    dist.reduce_scatter_tensor(total, x, op=dist.ReduceOp.SUM)
    dist.reduce_scatter_tensor(highest, x, op=dist.ReduceOp.MAX)

    columns = torch.tensor([2 * rank, 2 * rank + 1])
    check(total, 50 * world_size * (world_size - 1) + world_size * columns, "reduce_scatter_tensor(SUM)")
    check(highest, 100 * (world_size - 1) + columns, "reduce_scatter_tensor(MAX)")
    check(x, 100 * rank + torch.arange(2 * world_size), "reduce_scatter_tensor: its input")
    return {"before": x, "SUM": total, "MAX": highest}


# %% [markdown]
# **Predict first.** Rank 0 brings 0 to 7, rank 1 brings 100 to 107, and so on. Which two columns are rank 1's, and what are their
# maxima?

# %%
if __name__ == "__main__":
    run(pieces_of_one_tensor)

# %% [markdown]
# **Why.** Columns 2 and 3, and 302 and 303: pieces are cut by position, and each is reduced element by element. `reduce_scatter`
# does not hand a rank's own numbers back to it.

# %% [markdown]
# ### reduce_scatter + all_gather = all_reduce
#
# First every rank finishes the sum of one piece; then everyone gets everyone's piece. The two halves of a ring all_reduce are
# these, and code that wants something done between them (an optimizer step, a cast to fewer bits) takes them apart. A tensor that n
# does not divide is padded with zeros, which change no sum, and trimmed afterwards.


# %%
def reduce_scatter_then_all_gather(rank, world_size, device):
    x = 100 * rank + torch.arange(6, device=device)
    in_one_call = x.clone()
    dist.all_reduce(in_one_call, op=dist.ReduceOp.SUM)

    padded = torch.nn.functional.pad(x, (0, -len(x) % world_size))
    piece = torch.full((len(padded) // world_size,), -1, device=device)
    dist.reduce_scatter_tensor(piece, padded, op=dist.ReduceOp.SUM)
    whole = torch.full_like(padded, -1)
    dist.all_gather_into_tensor(whole, piece)
    in_two_calls = whole[: len(x)]

    expected = 50 * world_size * (world_size - 1) + world_size * torch.arange(6)
    check(in_two_calls, expected, "reduce_scatter_tensor(SUM), all_gather_into_tensor")
    check(in_one_call, expected, "all_reduce(SUM)")
    check(in_two_calls, in_one_call.cpu(), "reduce_scatter_tensor(SUM), all_gather_into_tensor against all_reduce(SUM)")
    return {"own": x, "piece": piece, "both calls": in_two_calls, "all_reduce": in_one_call}


# %% [markdown]
# **Predict first.** Six numbers on four ranks: padded to eight, two to each rank. What does rank 3 hold between the two calls, in
# the column "piece"?

# %%
if __name__ == "__main__":
    run(reduce_scatter_then_all_gather)

# %% [markdown]
# **Why.** Sums of nothing but padding: rank 3 works for nothing, and yet it must take part in both calls. Zeros change no sum.

# %% [markdown]
# ### An optimizer that each rank runs on its own piece
#
# All ranks hold the same weights, and each has its own gradient of all of them. Plain data parallelism averages the whole gradient
# everywhere, and everyone takes the same step, with the same optimizer state. Here rank r averages, remembers and updates only
# piece r; all_gather then hands out the new weights. As many bytes travel; the state is one n-th.


# %%
def sharded_optimizer(rank, world_size, device):
    weights = torch.ones(world_size, device=device)
    gradient = rank + torch.arange(float(world_size), device=device)

    shard = weights.chunk(world_size)[rank].clone()  # the piece that this rank answers for
    momentum = torch.zeros_like(shard)  # the optimizer's state, for this piece alone
    mean = torch.full_like(shard, -1)
    dist.reduce_scatter_tensor(mean, gradient, op=dist.ReduceOp.SUM)
    mean /= world_size
    momentum = 0.5 * momentum + mean
    shard -= 0.5 * momentum
    dist.all_gather_into_tensor(weights, shard)

    means = (world_size - 1) / 2 + torch.arange(float(world_size))
    check(mean, means[rank : rank + 1], "reduce_scatter_tensor(SUM) / world size")
    check(weights, 1 - 0.5 * means, "weights by reduce_scatter_tensor(SUM), all_gather_into_tensor")
    return {"gradient": gradient, "mean of own piece": mean, "new weights": weights, "state": len(momentum)}


# %% [markdown]
# **Predict first.** Each rank takes an optimizer step for one of the four weights, with a momentum of one number. Which weights do
# the ranks hold afterwards: the same on all of them?

# %%
if __name__ == "__main__":
    run(sharded_optimizer)

# %% [markdown]
# **Why.** The same, and the same as if every rank had averaged the whole gradient and taken the whole step. Only what the step
# needs, the state, is spread over the ranks. This is the first idea of ZeRO.

# %%
STEPS = [reduce_scatter, pieces_of_one_tensor, reduce_scatter_then_all_gather, sharded_optimizer]

# %% [markdown]
# ## The proof
#
# The digits of the worked numbers name the sender and the piece. The sum for rank k is k + 1 times 11...1: it changes if a rank is
# left out, if nothing is summed, or if rank k gets another rank's piece. The two halves are compared with all_reduce itself and
# with the closed form, so neither is taken on trust.

# %% [markdown]
# ## The cost
#
# S is the size of what *each* rank gives, all n pieces; a rank gets S / n bytes. As a ring: n - 1 steps, in each of which every
# rank sends one partly summed piece; (n - 1) / n * S bytes in all, half of all_reduce. gloo on CPU saves nothing: in 2.13 its
# tensor form runs an all_reduce of a copy and keeps one piece, its list form runs one all_reduce for each piece (the flight
# recorder shows them).
#
# Bus-bandwidth factor: `(n - 1) / n`. (Algorithm bandwidth is S / time, with S the bytes of all n pieces, not of the one that is
# left; times this factor it can be compared with what the links can do.)

# %% [markdown]
# ## Pitfalls
#
# - Which size is S? A rate computed with the output's bytes is n times too low.
# - In the tensor form the first dimension must be exactly n times the output's: an input of shape (n, k) for an output of shape
#   (k,) is refused by gloo. Give a view: `x.view(-1)`.
# - A padding must not change the result: zeros for SUM, but not for MIN or PRODUCT.
# - For a mean, divide after the sum, or use AVG where the backend has it; gloo refuses AVG for integers.
# - Every rank must name the same reduction and bring the same shapes: nobody compares them.
# - A sum of floating-point numbers depends on the order of addition: one call and two calls may differ in the last bit. Whole
#   numbers do not.

# %% [markdown]
# ## Where it is used
#
# FSDP and ZeRO reduce gradients so that each rank keeps the piece whose weights and optimizer state it holds. Sequence parallelism
# sums partial products and leaves each rank its part of the sequence. NCCL's ring all_reduce has this as its first half.

# %% [markdown]
# ## Change and try
#
# Each of these is one change in one cell: make it, run that cell and the one after it, and undo it.
#
# 1. In `reduce_scatter`, change `op=dist.ReduceOp.SUM` to `op=dist.ReduceOp.AVG`. Here every average would be a fraction. Does gloo
#    round? It says `result type Float can't be cast to the desired output type Long`, on every rank.
# 2. In `pieces_of_one_tensor`, change `dist.reduce_scatter_tensor(total, x, op=dist.ReduceOp.SUM)` to
#    `dist.reduce_scatter_tensor(total, x.view(world_size, 2), op=dist.ReduceOp.SUM)`. One row for each rank: the same bytes. It
#    says `outputShape[0] * worldSize == inputShape[0] (8 vs. 4)`: gloo wants the first dimension to match, too.
# 3. In `sharded_optimizer`, change `dist.reduce_scatter_tensor(mean, gradient, op=dist.ReduceOp.SUM)` to
#    `mean.copy_(gradient.chunk(world_size)[rank] * world_size)`. The gradients of the other ranks are forgotten. Do the ranks'
#    weights drift apart? No: all_gather still hands out the same to all, so that comparing the ranks shows nothing. It says
#    `[reduce_scatter_tensor(SUM) / world size, float32[1], gloo]`.

# %% [markdown]
# ## Read on
#
# In PyTorch's documentation:
#
# - [`reduce_scatter`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.reduce_scatter)
# - [`reduce_scatter_tensor`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.reduce_scatter_tensor)
# - [`all_gather_into_tensor`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_gather_into_tensor)
# - [`all_reduce`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_reduce)
# - [`ReduceOp`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.ReduceOp)
#
# Next lesson: [all_to_all](../notebooks/all_to_all.ipynb), the same pieces without the sum.
