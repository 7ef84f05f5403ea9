# %% [markdown]
"""
# reduce_scatter

A rank that updates only a part of the weights needs only that part of the summed gradient.
`reduce_scatter` adds up the tensors of all ranks, cuts the sum into n pieces, and gives piece r to
rank r.

You will see the pieces in a list and in one tensor; a maximum instead of the sum; that
reduce_scatter and all_gather together make an all_reduce; and an optimizer whose state is spread
over the ranks.

    python lessons/reduce_scatter.py
    torchrun --nproc-per-node 4 lessons/reduce_scatter.py
"""

# %%
from collectives import check
from collectives.lesson import run
import torch
import torch.distributed as dist

# %% [markdown]
# ## The call
#
# The input is a list with one piece for each rank, and the output is one piece. The inputs stay as
# they are. `op` names the reduction, as in `all_reduce`.


# %%
def reduce_scatter(rank, world_size, device):
    pieces = [torch.tensor([k + 1], device=device) * 10**rank for k in range(world_size)]
    mine = torch.full((1,), -1, device=device)
    dist.reduce_scatter(mine, pieces, op=dist.ReduceOp.SUM)
    # proof
    ones = (10**world_size - 1) // 9  # 1 + 10 + 100 + ... = 11...1
    check(mine, torch.tensor([(rank + 1) * ones]), "reduce_scatter(SUM)")
    own = [torch.tensor([k + 1]) * 10**rank for k in range(world_size)]
    check(pieces, own, "reduce_scatter: its input")
    return {"pieces": pieces, "mine": mine}


# %%
if __name__ == "__main__":
    run(reduce_scatter)

# %% [markdown]
# Four ranks print this:
#
# | rank | pieces | mine |
# |---|---|---|
# | 0 | [[1], [2], [3], [4]] | [1111] |
# | 1 | [[10], [20], [30], [40]] | [2222] |
# | 2 | [[100], [200], [300], [400]] | [3333] |
# | 3 | [[1000], [2000], [3000], [4000]] | [4444] |
#
# Read the pieces column by column: the first pieces add up to 1111, and rank 0 gets that sum. The
# place of a digit names the rank that it comes from, and the digit names the piece: 3333 is the sum
# of all third pieces. In the picture each rank on the right has one cell, made of all four colours.

# %% [markdown]
# ### One tensor, and another reduction
#
# `reduce_scatter_tensor` takes the pieces end to end in one tensor, n times as long as the output
# (torch 2.13 adds the name `reduce_scatter_single`). Each of the four ranks here has eight numbers:
# rank 0 has 20 to 27, rank 1 has 40 to 47, and so on. Each gets two sums, and in a second call two
# maxima.


# %%
def pieces_of_one_tensor(rank, world_size, device):
    x = 20 * (rank + 1) + torch.arange(2 * world_size, device=device)
    total, highest = (torch.full((2,), -1, device=device) for _ in range(2))
    dist.reduce_scatter_tensor(total, x, op=dist.ReduceOp.SUM)
    dist.reduce_scatter_tensor(highest, x, op=dist.ReduceOp.MAX)
    # proof
    columns, tens = torch.tensor([2 * rank, 2 * rank + 1]), 10 * world_size * (world_size + 1)
    check(total, tens + world_size * columns, "reduce_scatter_tensor(SUM)")
    check(highest, 20 * world_size + columns, "reduce_scatter_tensor(MAX)")
    return {"x": x, "SUM": total, "MAX": highest}


# %% [markdown]
# **Predict first.** Rank 1 has the numbers 40 to 47. Which two maxima does it get? Write them down.

# %%
if __name__ == "__main__":
    run(pieces_of_one_tensor)

# %% [markdown]
# <details><summary>Answer</summary>
#
# They are 82 and 83. The third and the fourth place belong to rank 1, and the largest numbers there
# are those of rank 3. The place decides which rank gets a result, and not the rank that a number
# comes from.
#
# </details>

# %% [markdown]
# ### reduce_scatter + all_gather = all_reduce
#
# First every rank gets the sum of one piece; then every rank gathers the pieces of all. That is an
# all_reduce in two halves, and a ring all_reduce works like this inside. Take the halves apart if
# something has to happen between them, such as an optimizer step on each rank's piece.
#
# Six numbers cannot be cut into four equal pieces. So they are padded with zeros to eight, and the
# result is trimmed.


# %%
def reduce_scatter_then_all_gather(rank, world_size, device):
    x = torch.arange(1, 7, device=device) * 10**rank
    padded = torch.nn.functional.pad(x, (0, -len(x) % world_size))
    piece = torch.full((len(padded) // world_size,), -1, device=device)
    dist.reduce_scatter_tensor(piece, padded, op=dist.ReduceOp.SUM)
    whole = torch.full_like(padded, -1)
    dist.all_gather_into_tensor(whole, piece)
    two_calls = whole[: len(x)]

    one_call = x.clone()
    dist.all_reduce(one_call, op=dist.ReduceOp.SUM)
    # proof
    expected = torch.arange(1, 7) * ((10**world_size - 1) // 9)
    check(two_calls, expected, "reduce_scatter_tensor(SUM), all_gather_into_tensor")
    check(one_call, expected, "all_reduce(SUM)")
    return {"x": x, "piece": piece, "two calls": two_calls, "one call": one_call}


# %% [markdown]
# **Predict first.** Rank 0 has 1 to 6, rank 1 has 10 to 60, and so on. What does rank 1 hold
# between the two calls, and what does rank 3 hold? Write down four numbers.

# %%
if __name__ == "__main__":
    run(reduce_scatter_then_all_gather)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Rank 1 holds 3333 and 4444. Rank 3 holds 0 and 0, because its piece is nothing but padding. It
# must take part in both calls all the same. In the picture, follow one piece: call 1 makes it from
# four colours, and call 2 copies it to every rank.
#
# </details>

# %% [markdown]
# ### An optimizer that each rank runs on its own piece
#
# All ranks hold the same weights, and each rank has a gradient of its own for all of them. Plain
# data parallelism averages all gradients on all ranks; then every rank takes the same step, with
# the same optimizer state. Here rank r averages, remembers and updates only piece r, and all_gather
# hands out the new weights. There are two steps, so that the state, a momentum, counts. With a
# ring, the two calls together send as many bytes as one all_reduce, but each rank keeps only 1 / n
# of the optimizer's state.


# %%
def sharded_optimizer(rank, world_size, device):
    weights = torch.ones(world_size, device=device)
    gradient = 10 * (rank + 1) + torch.arange(float(world_size), device=device)

    shard = weights.chunk(world_size)[rank].clone()  # the piece that this rank updates
    momentum = torch.zeros_like(shard)  # the optimizer's state, for this piece only
    mean, firsts = torch.full_like(shard, -1), []
    for _ in range(2):
        dist.reduce_scatter_tensor(mean, gradient, op=dist.ReduceOp.SUM)
        mean /= world_size
        momentum = 0.5 * momentum + mean
        shard -= 0.5 * momentum
        dist.all_gather_into_tensor(weights, shard)
        firsts.append(weights[0].item())
    # proof: one process, with the means of all gradients and the state of all weights
    alone = torch.ones(world_size, requires_grad=True)
    alone.grad = 5 * (world_size + 1) + torch.arange(float(world_size))
    optimizer = torch.optim.SGD([alone], lr=0.5, momentum=0.5)
    optimizer.step()
    optimizer.step()
    check(mean, alone.grad[rank : rank + 1], "reduce_scatter_tensor(SUM) / world size")
    check(weights, alone.detach(), "weights by reduce_scatter_tensor(SUM), all_gather_into_tensor")
    return {"mean": mean, "first weight": firsts, "weights": weights, "state": len(momentum)}


# %% [markdown]
# **Predict first.** All weights are 1, and the learning rate is 0.5. The four ranks' gradients for
# the first weight are 10, 20, 30 and 40, and only rank 0 updates it. What is the first weight after
# the first step on rank 0, and on rank 3? Write down both numbers.

# %%
if __name__ == "__main__":
    run(sharded_optimizer)

# %% [markdown]
# <details><summary>Answer</summary>
#
# It is -11.5 on both. The mean gradient is 25, so the weight goes from 1 to 1 - 12.5, and
# all_gather brings it to rank 3. In the second step the momentum is 0.5 * 25 + 25, and the weight
# goes to -30.25. Every rank ends with the weights that plain data parallelism gives, with the state
# of one weight instead of four. This is the first idea of ZeRO, which trains models that do not fit
# on one GPU.
#
# </details>

# %%
STEPS = [reduce_scatter, pieces_of_one_tensor, reduce_scatter_then_all_gather, sharded_optimizer]

# %% [markdown]
# ## The cost
#
# S is the size in bytes of what *each* rank gives, all n pieces together; a rank gets S / n. A ring
# takes n - 1 steps, and in each of them every rank sends one partly summed piece. In all it sends
# (n - 1) / n * S bytes, half of what all_reduce sends.
#
# gloo on the CPU saves nothing. In torch 2.13, `reduce_scatter_tensor` copies the input, runs an
# all_reduce on the copy, and keeps one piece. `reduce_scatter` runs one all_reduce for each piece.
# You can see this in torch's flight recorder, a log in each process of the collectives that the
# backend really ran.
#
# Bus-bandwidth factor: `(n - 1) / n`. The algorithm bandwidth is S / time, with the bytes of all n
# pieces. Multiply it by this factor to compare it with the bandwidth of the links.

# %% [markdown]
# ## Pitfalls
#
# - S is the size of the input. If you compute a bandwidth from the bytes of the output, it is n
#   times too low.
# - In the tensor form the first dimension of the input must be n times that of the output. For an
#   output of shape (k), gloo refuses an input of shape (n, k). Pass `x.view(-1)`.
# - An output without dimensions, such as `torch.tensor(0.0)`, ends the process on gloo. Give it the
#   shape (1).
# - Padding changes no result of the call, because padding is only added to padding. But if you
#   compute a minimum or a mean of the piece, before you trim, the padding counts.
# - Every rank must name the [same reduction](../notebooks/mistakes/arguments.ipynb) and bring the
#   [same number of elements](../notebooks/mistakes/arguments.ipynb).
# - In torch 2.6, gloo had no list form, and its tensor form summed whatever reduction you asked
#   for.
# - With floating-point numbers, the two halves may differ from all_reduce in the last bit, because
#   they may add in another order.

# %% [markdown]
# ## Where it is used
#
# FSDP and ZeRO reduce gradients with it, so that each rank gets the piece whose weights and
# optimizer state it holds. Sequence parallelism adds up partial products, and leaves each rank its
# part of the sequence. It is also the backward of all_gather: each rank has a gradient for each
# piece, and the owner needs the sum.

# %% [markdown]
# ## Change and try
#
# Each of these is one change in one cell. Make it, run that cell and the one after it, and undo it.
#
# 1. In `reduce_scatter`, change `op=dist.ReduceOp.SUM` to `op=dist.ReduceOp.AVG`. The average of
#    the first pieces is 277.75, and the tensors hold integers. Does gloo round?
#
#    <details><summary>Answer</summary>
#
#    You get `result type Float can't be cast to the desired output type Long`, on every rank. It
#    refuses.
#
#    </details>
#
# 2. In `pieces_of_one_tensor`, change `dist.reduce_scatter_tensor(total, x, op=dist.ReduceOp.SUM)`
#    to `dist.reduce_scatter_tensor(total, x.view(world_size, 2), op=dist.ReduceOp.SUM)`. Now there
#    is one row for each rank, with the same bytes. Does gloo take it?
#
#    <details><summary>Answer</summary>
#
#    You get `outputShape[0] * worldSize == inputShape[0] (8 vs. 4)`. gloo compares the first
#    dimensions, 2 * 4 with 4.
#
#    </details>
#
# 3. In `sharded_optimizer`, change `dist.reduce_scatter_tensor(mean, gradient,
#    op=dist.ReduceOp.SUM)` to `mean.copy_(gradient.chunk(world_size)[rank] * world_size)`. The
#    gradients of the other ranks are forgotten. Do the weights of the ranks now differ?
#
#    <details><summary>Answer</summary>
#
#    You get `[reduce_scatter_tensor(SUM) / world size, float32[1], gloo]`, with a wrong mean. But
#    the weights are the same on all ranks, because all_gather still gives each piece to all.
#    Comparing the ranks with each other would show nothing.
#
#    </details>

# %% [markdown]
# ## Write it yourself
#
# Write `my_all_reduce(x, op)`, which does what `dist.all_reduce` does, in place, for a tensor of
# any shape. The only calls that it may make are `reduce_scatter_tensor` and
# `all_gather_into_tensor`.
#
# <details><summary>One way to write it</summary>
#
# ```python
# def my_all_reduce(x, op):
#     world_size = dist.get_world_size()
#     padded = torch.nn.functional.pad(x.flatten(), (0, -x.numel() % world_size))
#     piece = padded.new_empty(len(padded) // world_size)
#     dist.reduce_scatter_tensor(piece, padded, op=op)
#     dist.all_gather_into_tensor(padded, piece)
#     x.copy_(padded[: x.numel()].view_as(x))
#
#
# def try_my_all_reduce(rank, world_size, device):
#     x = torch.tensor([[1, 2, 3], [4, 5, 6]], device=device) * 10**rank
#     total, lowest = x.clone(), x.clone()
#     my_all_reduce(total, dist.ReduceOp.SUM)
#     my_all_reduce(lowest, dist.ReduceOp.MIN)
#     ones = (10**world_size - 1) // 9
#     check(total, torch.tensor([[1, 2, 3], [4, 5, 6]]) * ones, "my_all_reduce(SUM)")
#     check(lowest, torch.tensor([[1, 2, 3], [4, 5, 6]]), "my_all_reduce(MIN)")
#     return {"x": x, "SUM": total, "MIN": lowest}
# ```
#
# </details>

# %% [markdown]
# ## Read on
#
# - S. Rajbhandari and others, [*ZeRO: Memory Optimizations Toward Training Trillion Parameter
#   Models*](https://arxiv.org/abs/1910.02054) (2020): state, gradients and weights in pieces, one
#   after the other.
# - R. Rabenseifner, *Optimization of Collective Reduction Operations* (2004): all_reduce as
#   reduce_scatter and all_gather.
# - V. Korthikanti and others, [*Reducing Activation Recomputation in Large Transformer
#   Models*](https://arxiv.org/abs/2205.05198) (2022): sequence parallelism.
#
# In PyTorch's documentation:
#
# - [`reduce_scatter`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.reduce_scatter)
# - [`reduce_scatter_tensor`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.reduce_scatter_tensor)
# - [`all_gather_into_tensor`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_gather_into_tensor)
# - [`all_reduce`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_reduce)
# - [`ReduceOp`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.ReduceOp)
# - [`get_world_size`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.get_world_size)
#
# You now know what data parallel training is made of. If that is what you came for, read
# [data_parallel](../notebooks/training/data_parallel.ipynb) next, which trains on real images.
#
# Next lesson: [reduce](../notebooks/reduce.ipynb), for a sum that only one rank needs.
