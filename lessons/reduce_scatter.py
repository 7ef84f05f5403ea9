# %% [markdown]
"""
# reduce_scatter

`reduce_scatter` adds up the tensors of all ranks, cuts the sum into n pieces, and gives piece r to
rank r. A rank that updates only a part of the weights needs only that part of the summed gradient.

You will see a maximum instead of the sum; that reduce_scatter and all_gather together make an
all_reduce; and an optimizer whose state is spread over the ranks.

    python lessons/reduce_scatter.py
    torchrun --nproc-per-node 4 lessons/reduce_scatter.py
"""

# %%
from collectives import check, run
import torch
import torch.distributed as dist

# %% [markdown]
# ## The call
#
# The input is a list with one piece for each rank, and the output is one piece. The inputs stay as
# they are. `op` names the reduction, as in `all_reduce`.


# %%
def reduce_scatter(rank, world_size, device):
    x = torch.arange(1, 2 * world_size + 1, device=device) * 10**rank
    pieces = list(x.split(2))
    mine = torch.full((2,), -1, device=device)
    dist.reduce_scatter(mine, pieces, op=dist.ReduceOp.SUM)
    # proof
    ones = (10**world_size - 1) // 9  # 1 + 10 + 100 + ... = 11...1
    check(mine, torch.tensor([2 * rank + 1, 2 * rank + 2]) * ones, "reduce_scatter(SUM)")
    check(x, torch.arange(1, 2 * world_size + 1) * 10**rank, "reduce_scatter: its input")
    return {"pieces": pieces, "mine": mine}


# %%
if __name__ == "__main__":
    run(reduce_scatter)

# %% [markdown]
# Four ranks print this:
#
# | rank | pieces | mine |
# |---|---|---|
# | 0 | [[1, 2], [3, 4], [5, 6], [7, 8]] | [1111, 2222] |
# | 1 | [[10, 20], [30, 40], [50, 60], [70, 80]] | [3333, 4444] |
# | 2 | [[100, 200], [300, 400], [500, 600], [700, 800]] | [5555, 6666] |
# | 3 | [[1000, 2000], [3000, 4000], [5000, 6000], [7000, 8000]] | [7777, 8888] |
#
# Read the pieces column by column: the first pieces add up to 1111, 2222, and rank 0 gets that sum.

# %% [markdown]
# ### One tensor, and another reduction
#
# `reduce_scatter_single` takes the pieces end to end in one tensor, n times as long as the output.
# In older code you meet it as `reduce_scatter_tensor`: that name still works, but torch 2.13 warns
# that it is deprecated. Here it computes the sums as above, and in a second call the maxima.

# %% [markdown]
# **Predict first.** Rank 1 passes the numbers 10 to 80. Which two maxima does it get?


# %%
def pieces_of_one_tensor(rank, world_size, device):
    x = torch.arange(1, 2 * world_size + 1, device=device) * 10**rank
    total, highest = (torch.full((2,), -1, device=device) for _ in range(2))
    dist.reduce_scatter_single(total, x, op=dist.ReduceOp.SUM)
    dist.reduce_scatter_single(highest, x, op=dist.ReduceOp.MAX)
    # proof
    columns = torch.tensor([2 * rank + 1, 2 * rank + 2])
    check(total, columns * ((10**world_size - 1) // 9), "reduce_scatter_single(SUM)")
    check(highest, columns * 10 ** (world_size - 1), "reduce_scatter_single(MAX)")
    return {"x": x, "SUM": total, "MAX": highest}


# %%
if __name__ == "__main__":
    run(pieces_of_one_tensor)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 3000 and 4000. The third and the fourth position belong to rank 1, and rank 3 passes the largest
# numbers there. Which rank gets a result depends on its position in the tensor, not on whose number
# is the largest.
#
# </details>

# %% [markdown]
# ### reduce_scatter + all_gather = all_reduce
#
# First every rank gets the sum of one piece; then every rank gathers the pieces of all. A ring
# all_reduce works like this inside. Use the two calls if something has to happen between them, such
# as an optimizer step on each rank's piece.

# %% [markdown]
# **Predict first.** What does rank 3 hold between the two calls, and what after the second one?


# %%
def reduce_scatter_then_all_gather(rank, world_size, device):
    x = torch.arange(1, 2 * world_size + 1, device=device) * 10**rank
    piece = torch.full((2,), -1, device=device)
    dist.reduce_scatter_single(piece, x, op=dist.ReduceOp.SUM)
    two_calls = torch.full_like(x, -1)
    dist.all_gather_single(two_calls, piece)

    one_call = x.clone()
    dist.all_reduce(one_call, op=dist.ReduceOp.SUM)
    # proof
    expected = torch.arange(1, 2 * world_size + 1) * ((10**world_size - 1) // 9)
    check(two_calls, expected, "reduce_scatter_single(SUM), all_gather_single")
    check(one_call, expected, "all_reduce(SUM)")
    return {"piece": piece, "two calls": two_calls, "one call": one_call}


# %%
if __name__ == "__main__":
    run(reduce_scatter_then_all_gather)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 7777 and 8888, and then all eight sums, from 1111 to 8888. In the notebook's picture (or
# `collectives run reduce_scatter --picture`), follow one piece: call 1 makes it from four colours,
# and call 2 copies it to every rank.
#
# </details>

# %% [markdown]
# ### An optimizer that each rank runs on its own piece
#
# All ranks have the same weights, and each rank computes a gradient for all of them. In plain data
# parallelism every rank averages all gradients, and makes the same step. Here rank r averages and
# updates only piece r, its [shard](../docs/glossary.md#shard), and keeps the optimizer's state only
# for this piece. Then all_gather gives every rank the new weights.
#
# The optimizer is SGD with momentum: its state is a moving sum of the past gradients. The state
# starts at zero, so it matters only from the second step on: we make two, with the same made-up
# gradients.

# %% [markdown]
# **Predict first.** All weights are 1, and the learning rate is 0.5. The four ranks' gradients for
# the first weight are 1, 2, 3 and 4, and only rank 0 updates it. What is the first weight after the
# first step on rank 0, and on rank 3?


# %%
def sharded_optimizer(rank, world_size, device):
    weights = torch.ones(2 * world_size, device=device)
    gradient = (rank + 1) * torch.arange(1.0, 2 * world_size + 1, device=device)

    shard = weights.chunk(world_size)[rank].clone()  # the piece that this rank updates
    state = torch.zeros_like(shard)  # the optimizer's, for this piece only
    lr, momentum = 0.5, 0.25
    mean, firsts = torch.full_like(shard, -1), []
    for _ in range(2):
        dist.reduce_scatter_single(mean, gradient, op=dist.ReduceOp.SUM)
        mean /= world_size
        state = momentum * state + mean
        shard -= lr * state
        dist.all_gather_single(weights, shard)
        firsts.append(weights[0].item())
    # proof: one process, with the means of all gradients and the state of all weights
    alone = torch.ones(2 * world_size, requires_grad=True)
    alone.grad = (world_size + 1) / 2 * torch.arange(1.0, 2 * world_size + 1)
    optimizer = torch.optim.SGD([alone], lr=lr, momentum=momentum)
    optimizer.step()
    optimizer.step()
    check(mean, alone.grad.chunk(world_size)[rank], "reduce_scatter_single(SUM) / world size")
    check(weights, alone.detach(), "weights by reduce_scatter_single(SUM), all_gather_single")
    return {"mean": mean, "first weight": firsts, "weights": weights, "state": len(state)}


# %%
if __name__ == "__main__":
    run(sharded_optimizer)

# %% [markdown]
# <details><summary>Answer</summary>
#
# -0.25 on both. The mean gradient is 2.5, so rank 0 computes 1 - 0.5 * 2.5, and all_gather gives
# the result to rank 3. In the second step the state is 0.25 * 2.5 + 2.5 = 3.125, and the weight
# becomes -0.25 - 0.5 * 3.125 = -1.8125. Every rank gets the weights of plain data parallelism, with
# the state of two weights in place of eight. This is the first idea of
# [ZeRO](../docs/glossary.md#zero).
#
# </details>

# %%
STEPS = [reduce_scatter, pieces_of_one_tensor, reduce_scatter_then_all_gather, sharded_optimizer]

# %% [markdown]
# ## The cost
#
# A reduce_scatter can send half of what an all_reduce sends. S is the size in bytes of what *each*
# rank passes. In a [ring](../notebooks/algorithms/ring.ipynb) every rank sends (n - 1) / n * S
# bytes.
#
# gloo does not save this half: in torch 2.13 it runs an all_reduce inside. `reduce_scatter_single`
# runs one on a copy of the input, and keeps one piece. `reduce_scatter` runs one for each piece, as
# torch's [flight recorder](../docs/glossary.md#flight-recorder) shows. On gloo with four ranks on
# two cores, 16 MiB took 68 ms, and an all_reduce 31 ms, less than half (`collectives bench bus
# reduce_scatter -n 4 -b 4KiB -e 16MiB -f 4096`, and the same of all_reduce).

# %% [markdown]
# ## Pitfalls
#
# - In the tensor form the first dimension of the input must be n times that of the output. For an
#   output of shape (k), gloo refuses an input of shape (n, k). Pass `x.view(-1)`.
# - An output without dimensions, such as `torch.tensor(0.0)`, ends the process on gloo. Give it the
#   shape (1).
# - If the length is no multiple of n, [pad](../docs/glossary.md#padding) the input, and leave the
#   padding out of a later mean or minimum over the elements.
# - Every rank must pass the [same reduction and the same number of
#   elements](../notebooks/mistakes/arguments.ipynb).

# %% [markdown]
# ## Where it is used
#
# [FSDP](../docs/glossary.md#fsdp) and ZeRO reduce gradients with it, so that each rank gets the
# piece whose weights and optimizer state it holds. In [sequence
# parallelism](../docs/glossary.md#sequence-parallel) each rank gets its part of a sum of partial
# products.

# %% [markdown]
# ## Change and try
#
# Make one change, run its cell and the next one, and undo it.
#
# 1. In `reduce_scatter`, change `mine = torch.full((2,), -1,` to `mine = torch.full((2,), -1.0,`.
#    The pieces are int64, and the output is float32. Are the sums converted?
#
#    <details><summary>Answer</summary>
#
#    You get `ValueError: Invalid usage of tensors with different dtypesFound torch.float32 and
#    torch.int64`. No collective converts.
#
#    </details>
#
# 2. In `sharded_optimizer`, change
#    `dist.reduce_scatter_single(mean, gradient, op=dist.ReduceOp.SUM)` to
#    `mean.copy_(gradient.chunk(world_size)[rank] * world_size)`. Each rank uses its own gradient
#    alone. Do the weights of the ranks differ?
#
#    <details><summary>Answer</summary>
#
#    You get `rank 0/4: got [1.0, 2.0], should be [2.5, 5.0] [reduce_scatter_single(SUM) / world
#    size, float32[2], gloo]`. The weights are wrong, but the same on all ranks, because all_gather
#    still gives each piece to all.
#
#    </details>

# %% [markdown]
# ## Write it yourself
#
# In your folder of [exercises](../README.md#exercises):
#
# ```sh
# collectives practice which_calls
# collectives practice reduce_scatter_from_reduces
# collectives practice all_reduce_from_its_halves
# ```

# %% [markdown]
# ## Read on
#
# - S. Rajbhandari and others, [*ZeRO: Memory Optimizations Toward Training Trillion Parameter
#   Models*](https://arxiv.org/abs/1910.02054) (2020): state, gradients and weights in pieces.
#
# In PyTorch's documentation:
#
# - [`reduce_scatter`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.reduce_scatter)
# - [`reduce_scatter_single`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.reduce_scatter_single)
# - [`all_gather_single`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_gather_single)
# - [`all_reduce`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_reduce)
#
# Next on the short route: [one_process](../notebooks/training/one_process.ipynb). All other calls:
# [reduce](../notebooks/reduce.ipynb).
