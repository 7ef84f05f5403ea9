# %% [markdown]
"""
# reduce_scatter: each rank gets one piece of the sum

`reduce_scatter` adds up the tensors of all ranks, cuts the sum into n pieces, and gives piece r to
rank r.

In data parallel training every rank holds all weights, and the optimizer's state for all of them.
That is a waste: if rank r updated only piece r of the weights, it would need the state of this
piece alone, and only this piece of the summed gradient. At the end of this lesson you can train
like that.

    python lessons/reduce_scatter.py
    torchrun --nproc-per-node 4 lessons/reduce_scatter.py
"""

# %%
from collectives import check, note_calls, run
import torch
import torch.distributed as dist

# %% [markdown]
# ## The call
#
# ```python
# dist.reduce_scatter(output, input_list, op=SUM, group=None, async_op=False)
# ```
#
# | argument | meaning |
# |---|---|
# | `output` | this rank's piece of the result |
# | `input_list` | a piece for each rank; they stay as they are |
# | `op` | the reduction, as in `all_reduce` |
# | `group` | the ranks that take part; None is all of them |
# | `async_op` | True: return a [`Work`](../docs/glossary.md#work) at once |


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
# Read the pieces column by column: the first pieces add up to 1111, 2222, and rank 0 gets that sum.
#
# `reduce_scatter_single` takes the pieces end to end in one tensor, n times as long as the output.
# It has this name since torch 2.13: an older torch has it as `reduce_scatter_tensor`, which newer
# ones still know, but 2.13 warns that this name is deprecated.

# %% [markdown]
# ### reduce_scatter + all_gather = all_reduce
#
# First every rank gets the sum of one piece; then every rank gathers the pieces of all. A
# [ring](../notebooks/algorithms/ring.ipynb) works like this inside. Use the two calls if something
# has to happen between them, such as an optimizer step on each rank's piece.

# %% [markdown]
# ### An optimizer that each rank runs on its own piece
#
# All ranks have the same weights, and each rank computes a gradient for all of them. In plain data
# parallelism every rank averages all gradients, and makes the same step. Here rank r averages and
# updates only piece r, its [shard](../docs/glossary.md#shard), and keeps the optimizer's state only
# for this piece. Then all_gather gives every rank the new weights.
#
# The optimizer is SGD with momentum: its state is a moving sum of the past gradients. It
# shows only from the second step on, so we take two, with the same made-up gradients.

# %% [markdown]
# **Predict first.** All weights are 1, and the learning rate is 0.5. The four ranks' gradients for
# the first weight are 1, 2, 3 and 4, and only rank 0 updates it. What is the first weight after the
# first step on rank 0, and on rank 3?


# %%
def sharded_optimizer(rank, world_size, device):
    calls = note_calls()  # what this rank calls from here on
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
    names, each = [call.name for call in calls], weights.nbytes // world_size
    check(names, ["reduce_scatter_single", "all_gather_single"] * 2, "the calls of two steps")
    check(
        [mean.nbytes, state.nbytes], [each, each], "bytes of the summed gradient, and of the state"
    )
    check(weights, alone.detach(), "weights by reduce_scatter_single(SUM), all_gather_single")
    return {"mean": mean, "first weight": firsts, "weights": weights, "state": len(state)}


# %%
if __name__ == "__main__":
    run(sharded_optimizer, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# -0.25 on both. The mean gradient is 2.5, so rank 0 computes 1 - 0.5 * 2.5, and all_gather gives
# the result to rank 3. In the second step, with momentum, the weight becomes -1.8125. Every rank
# gets the weights of plain data parallelism, and stores the state of two weights, not of eight.
# This is the first idea of [ZeRO](../docs/glossary.md#zero).
#
# </details>

# %% [markdown]
# To write, in your [folder of exercises](../README.md#exercises): `collectives practice
# all_reduce_from_its_halves`, where the length need not be a multiple of n; `collectives practice
# norm_of_sharded_gradients`, with one `all_reduce`; and, once you know
# [reduce](../notebooks/reduce.ipynb), `collectives practice reduce_scatter_from_reduces`.

# %%
STEPS = [reduce_scatter, sharded_optimizer]

# %% [markdown]
# ## Pitfalls
#
# - For an output of shape (k), gloo refuses an input of shape (n, k). Pass `x.view(-1)`.
# - If the length is no multiple of n, [pad](../docs/glossary.md#padding) the input, and leave the
#   padding out of a later mean or minimum over the elements.
# - Every rank must pass the [same reduction and the same number of
#   elements](../notebooks/mistakes/arguments.ipynb).

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

# %% [markdown]
# ## Read on
#
# - S. Rajbhandari and others, [*ZeRO*](https://arxiv.org/abs/1910.02054) (2020): state, gradients
#   and weights in pieces.
#
# In PyTorch's documentation:
#
# - [`reduce_scatter`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.reduce_scatter)
# - [`reduce_scatter_single`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.reduce_scatter_single)
#
# `reduce_scatter` and `all_gather` are what a training needs whose model is in pieces:
# [fully_sharded](../notebooks/model_parallel/fully_sharded.ipynb) calls both. Next lesson:
# [reduce](../notebooks/reduce.ipynb), after which one rank alone has the sum.
