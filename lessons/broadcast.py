# %% [markdown]
"""
# broadcast

`broadcast` copies the tensor of one rank, the root, into the tensors of all other ranks. It is used
when one rank knows what all ranks need: the first weights, a seed, or that it is time to stop.

You will see a tensor whose length only the root knows; a table to which every rank adds a row; and
which ranks wait for one that is late.

    python lessons/broadcast.py
    torchrun --nproc-per-node 4 lessons/broadcast.py
"""

# %%
import time
from collectives import check, needs, run
from collectives.pictures.rank_grid import RankGrid
import torch
import torch.distributed as dist

# %% [markdown]
# ## The call
#
# `broadcast` works in place. Every rank makes the same call: the root's `x` is read, and every
# other `x` is overwritten. `src` names the [root](../docs/glossary.md#root), the same one on all
# ranks.


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
# Four ranks print this:
#
# | rank | before | after |
# |---|---|---|
# | 0 | [1, 2, 3] | [31, 32, 33] |
# | 1 | [11, 12, 13] | [31, 32, 33] |
# | 2 | [21, 22, 23] | [31, 32, 33] |
# | 3 | [31, 32, 33] | [31, 32, 33] |
#
# The tens name the rank: afterwards every rank has the numbers of rank 3, the root. In the picture,
# only the root's colour is left.

# %% [markdown]
# ### A length that only the root knows
#
# A receiver must pass a tensor of the root's length and dtype: the call does not tell it either. If
# the receivers do not know the length, broadcast it first, as one number.


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
# Rank r fills row r of its table. All other rows are -1. Then each rank in turn broadcasts its row.

# %% [markdown]
# **Predict first.** `table[root]` makes a new tensor object. Does the table change? What is the
# second row of rank 0's table afterwards?


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
    run(broadcast_every_root)

# %% [markdown]
# <details><summary>Answer</summary>
#
# [11, 12]. `table[root]` is a [view](../docs/glossary.md#view): it shares the memory of the table,
# so the call writes into the table. The tensors of a model's `state_dict()` are such views, too.
# Broadcast into them, and the model has changed, without `load_state_dict`:
#
# ```python
# for tensor in model.state_dict().values():
#     dist.broadcast(tensor, src=0)  # every rank starts with the model of rank 0
# ```
#
# </details>

# %% [markdown]
# ### Who waits for whom
#
# You can skip this step at first reading. A program may rely on one thing: when `broadcast`
# returns, the rank holds the data; no more. This step shows which other ranks a rank waits for on
# gloo.
#
# gloo sends along a [tree](../docs/glossary.md#tree), from the root 0 to its children, and from
# these to theirs. Each rank is late once. Before it calls, it writes down which ranks have already
# returned. The ranks tell each other through torch's [store](../docs/glossary.md#store) when they
# call and return.

# %% [markdown]
# **Predict first.** With four ranks, 0 sends to 1 and 2, and 1 sends to 3. Rank 1 is late. Who
# returns before it calls?


# %%
def parent(rank):
    """Who sends to it: drop the first binary digit. 6 is 110, and its parent is 10, which is 2."""
    return rank - 2 ** (rank.bit_length() - 1)


def waits_for(rank, late):
    if rank == parent(late):
        return True  # until its child takes the data
    while rank > late:
        rank = parent(rank)
    return rank == late  # for data, which `late` sends to it or to a rank between them


@needs(ranks=2, backend="gloo")
def who_waits(rank, world_size, device):
    store = dist.distributed_c10d._get_default_store()  # private: the store of this job
    others = [other for other in range(world_size) if other != rank]
    free = [other for other in others if not waits_for(other, rank)]
    for late in range(world_size):
        if rank == late:
            for other in others:
                store.get(f"{late} is late, {other} calls")  # waits until the key is there
            for other in free:
                store.get(f"{late} is late, {other} has returned")
            time.sleep(0.1)  # in this time the others might return, too
            returned = [o for o in others if store.check([f"{late} is late, {o} has returned"])]
        store.set(f"{late} is late, {rank} calls", "")
        x = torch.tensor([1 if rank == 0 else -1], device=device)
        dist.broadcast(x, src=0)
        store.set(f"{late} is late, {rank} has returned", "")
        # proof
        check(x, torch.tensor([1]), "broadcast with a late rank")
    check(returned, free, "the ranks that return before this one calls")
    waited = [other in others and other not in returned for other in range(world_size)]
    legend = "In each row one rank is late. Filled: this other rank waited for it."
    grid = RankGrid({"ranks that waited": waited}, "rank", legend, first=0)
    return {"had returned before it called": returned, "late": grid}


# %%
if __name__ == "__main__":
    run(who_waits)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Only rank 2, as the second row of the picture shows. Rank 3 waits for the data, which rank 1 sends
# to it. What surprises is rank 0: on gloo the sender also waits until its child takes the data, so
# rank 0 waits for rank 1. Another backend, root or version may use another tree.
#
# </details>

# %%
STEPS = [broadcast, broadcast_length_first, broadcast_every_root, who_waits]

# %% [markdown]
# ## The cost
#
# S is the size of the tensor in bytes. In a [chain](../docs/glossary.md#chain) the root sends to
# the next rank, and every rank but the last passes on what it gets: n - 1 rounds. If the tensor is
# cut into many small pieces, all links work at the same time, and the whole takes little longer
# than S bytes on one link. A [tree](../notebooks/algorithms/tree.ipynb) takes about log2(n) rounds,
# which is better for small tensors.
#
# On gloo with four ranks on two cores, a broadcast of 4 KiB took 1 ms, and an all_reduce 6.4 ms
# (`collectives bench bus broadcast -n 4 -b 4KiB -e 16MiB -f 4096`, and the same of all_reduce).

# %% [markdown]
# ## Pitfalls
#
# - Every rank must name the same root. If they do not, gloo reports no error: [some ranks return,
#   and others wait](../notebooks/mistakes/arguments.ipynb) until the time limit.
# - Every rank must pass the same length. If the root sends less than a receiver expects, [the last
#   elements keep their old values](../notebooks/mistakes/buffers.ipynb). If it sends more, gloo
#   [ends the receiver's process](../notebooks/mistakes/buffers.ipynb).
# - If `x` holds integers, `dist.broadcast(x.float(), src=0)` fills a copy, and you lose it.
# - `src` is the rank in the whole job, also with `group=`. The rank within the group is
#   `group_src`. [Many programs confuse the two](../notebooks/mistakes/groups.ipynb).
# - A broadcast is [no barrier](../notebooks/hearsay.ipynb): some ranks wait for others, but not all
#   for all.
# - A column `x[:, 0]` is not [contiguous](../docs/glossary.md#contiguous). gloo [overwrites its
#   neighbours](../notebooks/mistakes/buffers.ipynb).

# %% [markdown]
# ## On GPUs
#
# - NCCL refuses a tensor that is not contiguous ([issue
#   192920](https://github.com/pytorch/pytorch/issues/192920)).

# %% [markdown]
# ## Where it is used
#
# [DDP](../docs/glossary.md#ddp) broadcasts the parameters and buffers of rank 0 when it is made, so
# that all ranks start alike. In reinforcement learning, a trainer broadcasts new weights to the
# ranks that generate: see [weight_update](../notebooks/weight_update.ipynb).

# %% [markdown]
# ## Change and try
#
# Make one change, run its cell and the next one, and undo it.
#
# 1. In `broadcast_length_first`, change `length.item(),` to `length.item() + 2,`. The root sends 5
#    numbers, and the others expect 7. Does the call raise an error, wait, or return?
#
#    <details><summary>Answer</summary>
#
#    You get `rank 1/4: got [[5], [1, 2, 3, 4, 5, -1, -1]], should be [[5], [1, 2, 3, 4, 5]]
#    [broadcast, length first, int64[1], gloo]`. On gloo it returns: the last two elements keep
#    their old values, and only the proof notices.
#
#    </details>
#
# 2. In `broadcast_every_root`, change `dist.broadcast(table[root], src=root)` to
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
# ## Write it yourself
#
# In your folder of [exercises](../README.md#exercises):
#
# ```sh
# collectives practice broadcast_from_all_reduce
# collectives practice broadcast_as_a_tree
# ```

# %% [markdown]
# ## Read on
#
# - R. Thakur, R. Rabenseifner and W. Gropp, *Optimization of Collective Communication Operations in
#   MPICH* (2005): when a tree is best, and what is better for large tensors.
#
# In PyTorch's documentation:
#
# - [`broadcast`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.broadcast)
# - [`all_reduce`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_reduce)
# - [`ReduceOp`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.ReduceOp)
#
# Next lesson: [all_gather](../notebooks/all_gather.ipynb), n broadcasts in one call.
