# %% [markdown]
"""
# broadcast: the tensor of one rank for all ranks

`broadcast` copies the tensor of one rank, the root, into the tensors of all other ranks.

Copies of a model stay equal only if they start equal. But each rank has made its own first weights,
or one rank alone has read the checkpoint, drawn the seed, or noticed that it is time to stop. At
the end of this lesson you can give all ranks what one of them has, also when they do not know how
much it is.

    python lessons/broadcast.py
    torchrun --nproc-per-node 4 lessons/broadcast.py
"""

# %%
from collectives import check, run
import torch
import torch.distributed as dist

# %% [markdown]
# ## The call
#
# ```python
# dist.broadcast(tensor, src=None, group=None, async_op=False, group_src=None)
# ```
#
# | argument | meaning |
# |---|---|
# | `tensor` | on the root, what is sent; elsewhere, what is overwritten |
# | `src` | the [root](../docs/glossary.md#root): its rank in the whole job |
# | `group` | the ranks that take part; None is all of them |
# | `async_op` | True: return a [`Work`](../docs/glossary.md#work) at once |
# | `group_src` | the root's rank in the group, in place of `src` |
#
# Every rank makes the same call, and names the same root.


# %%
def broadcast(rank, world_size, device):
    x = 10 * rank + torch.tensor([1, 2, 3], device=device)
    before = x.clone()
    root = world_size - 1
    dist.broadcast(x, src=root)
    # proof: the root keeps what it had
    check(x, 10 * root + torch.tensor([1, 2, 3]), "broadcast")
    return {"before": before, "after": x}


# %%
if __name__ == "__main__":
    run(broadcast)

# %% [markdown]
# The tens name the rank, so afterwards every rank has the numbers of rank 3, the root. In the
# picture, only the root's colour is left.
#
# **Write it yourself**, in your [folder of exercises](../README.md#exercises). `all_reduce` can
# broadcast, too, if the other ranks contribute the right thing:
#
# ```sh
# collectives practice broadcast_from_all_reduce
# ```

# %% [markdown]
# ### A length that only the root knows
#
# A receiver must pass a tensor of the root's length and dtype. `broadcast` sends neither, so the
# receiver must know both. If the ranks do not know the length, broadcast it first, as one number.


# %%
def broadcast_length_first(rank, world_size, device):
    length = torch.tensor([-1], device=device)
    if rank == 0:
        samples = torch.arange(1, 6, device=device)
        length[0] = len(samples)
    dist.broadcast(length, src=0)
    if rank != 0:
        samples = torch.full((length.item(),), -1, device=device)  # usually torch.empty
    dist.broadcast(samples, src=0)
    # proof
    check([length, samples], [torch.tensor([5]), torch.arange(1, 6)], "broadcast, length first")
    return {"length": length, "samples": samples}


# %%
if __name__ == "__main__":
    run(broadcast_length_first)

# %% [markdown]
# ### Every rank is the root once
#
# Sometimes the root changes from call to call. Here rank r has filled row r of its table, and all
# other rows are -1, so each rank in turn broadcasts its row. If all rows were ready at once,
# [all_gather](../notebooks/all_gather.ipynb) would do the same in one call.

# %% [markdown]
# **Predict first.** Row 1 of rank 1 is [11, 12]. The call gets `table[root]`, which is a new tensor
# object. Does the table of rank 0 change, and what is in its row 1 afterwards?


# %%
def broadcast_every_root(rank, world_size, device):
    table = torch.full((world_size, 2), -1, device=device)
    table[rank] = 10 * rank + torch.tensor([1, 2])
    own = table[rank].clone()
    for root in range(world_size):
        dist.broadcast(table[root], src=root)
    # proof
    rows = [10 * r + torch.tensor([1, 2]) for r in range(world_size)]
    check(table, torch.stack(rows), "broadcast from every root")
    return {"own row": own, "table": table}


# %%
if __name__ == "__main__":
    run(broadcast_every_root, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# It changes, and has [11, 12] there. `table[root]` is a [view](../docs/glossary.md#view): it shares
# the memory of the table, so the call writes into the table. The tensors of a model's
# `state_dict()` are such views, too. Broadcast into them, and the model has changed, without
# `load_state_dict`:
#
# ```python
# for tensor in model.state_dict().values():
#     dist.broadcast(tensor, src=0)  # every rank starts with the model of rank 0
# ```
#
# [one_start](../notebooks/route/one_start.ipynb) needs both kinds of them, parameters and buffers.
#
# </details>

# %% [markdown]
# More to write: `collectives practice repair_the_dtype`, a program to fix.

# %%
STEPS = [broadcast, broadcast_length_first, broadcast_every_root]

# %% [markdown]
# ## Pitfalls
#
# - If the ranks name different roots, gloo reports no error: [some return, and others
#   wait](../notebooks/mistakes/arguments.ipynb) until the time limit.
# - If the root sends less than a receiver expects, [the last elements keep their old
#   values](../notebooks/mistakes/buffers.ipynb). If it sends more, gloo ends the receiver's
#   process.
# - If `x` holds integers, `dist.broadcast(x.float(), src=0)` fills a copy, and you lose it.
# - A broadcast is [no barrier](../notebooks/hearsay.ipynb). Only this is guaranteed: once
#   `broadcast` returns on a rank, that rank has the data.

# %% [markdown]
# ## On GPUs
#
# - NCCL refuses a tensor that is not contiguous ([issue
#   192920](https://github.com/pytorch/pytorch/issues/192920)).
# - But `send` and `recv` on NCCL take one and [deliver wrong
#   numbers](https://github.com/pytorch/pytorch/issues/62283), because they move its memory as if it
#   had no gaps.

# %% [markdown]
# ## Change and try
#
# Make one change, run its cell and the next one, and undo it.
#
# 1. In `broadcast_every_root`, change `dist.broadcast(table[root], src=root)` to
#    `dist.broadcast(table[root].clone(), src=root)`. The ranks exchange the same numbers. What does
#    the table of rank 0 contain?
#
#    <details><summary>Answer</summary>
#
#    You get `rank 0/4: got [[1, 2], [-1, -1], [-1, -1], [-1, -1]], should be [[1, 2], [11, 12],
#    [21, 22], [31, 32]] [broadcast from every root, int64[4, 2], gloo]`. Each table contains only
#    its rank's own row: the other rows are in copies, which are lost.
#
#    </details>

# %% [markdown]
# ## Read on
#
# In PyTorch's documentation:
#
# - [`broadcast`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.broadcast)
#
# Both calls so far involve every rank. Next lesson: [send_recv](../notebooks/send_recv.ipynb), for
# what two ranks exchange and no other rank needs.
