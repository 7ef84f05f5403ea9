# %% [markdown]
"""
# reduce_scatter

Every rank gives n pieces, the pieces are summed over the ranks, and rank r ends up with the sum of all pieces number r.

You will see the pieces as a list and as one tensor, another reduction than the sum, the proof that reduce_scatter followed by
all_gather is all_reduce, and an optimizer whose state is spread over the ranks.

    python lessons/reduce_scatter.py
    torchrun --nproc-per-node 4 lessons/reduce_scatter.py

To run it, clone the repository and type `make tour`, or `pip install -e .` where you already have torch.
"""

# %%
from collectives import check
from collectives.lesson import run
import torch
import torch.distributed as dist

# %% [markdown]
# ## Worked numbers
#
# Four ranks. Rank r's piece k is `[10 * r + k]`; rank k ends with the sum of everyone's piece k, which is `60 + 4 * k`.
#
# | rank | before | after |
# |---|---|---|
# | 0 | [[0], [1], [2], [3]] | [60] |
# | 1 | [[10], [11], [12], [13]] | [64] |
# | 2 | [[20], [21], [22], [23]] | [68] |
# | 3 | [[30], [31], [32], [33]] | [72] |

# %% [markdown]
# ## The code
#
# The input is a list with one piece for each rank; the output is one piece. The inputs stay as they are.


# %%
def reduce_scatter(rank, world_size, device):
    pieces = [torch.tensor([10 * rank + k], device=device) for k in range(world_size)]
    mine = torch.full((1,), -1, device=device)

    dist.reduce_scatter(mine, pieces, op=dist.ReduceOp.SUM)

    total = world_size * (world_size - 1) // 2  # 0 + 1 + ... + (n - 1)
    check(mine, torch.tensor([10 * total + world_size * rank]), "reduce_scatter(SUM)")
    check(pieces, [torch.tensor([10 * rank + k]) for k in range(world_size)], "reduce_scatter: its input")
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


# %%
if __name__ == "__main__":
    run(pieces_of_one_tensor)

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


# %%
if __name__ == "__main__":
    run(reduce_scatter_then_all_gather)

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


# %%
if __name__ == "__main__":
    run(sharded_optimizer)

# %%
STEPS = [reduce_scatter, pieces_of_one_tensor, reduce_scatter_then_all_gather, sharded_optimizer]

# %% [markdown]
# ## The proof
#
# The tens in the worked numbers name the sender, the ones name the piece. The sum for rank k is 10 * n (n - 1) / 2 + n * k: it
# changes if a rank is left out, if nothing is summed, or if rank k gets another rank's piece. The two halves are compared with
# all_reduce itself and with the closed form, so neither is taken on trust.

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
