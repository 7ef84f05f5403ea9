# %% [markdown]
"""
# broadcast

One rank, the root (`src`), has a tensor, and every rank ends up with a copy of it, in place.

A **rank** is one process of the job, and its number, from 0; the **world size**, n below, is how many there are. The **root** is
the one rank with a part of its own. A **group** is some of the ranks, for calls among themselves. The **backend** is the library
that moves the bytes: gloo (CPU), NCCL (GPU) or MPI.

You will see one broadcast, two from different roots and of different lengths, one from every root into the rows of a table, and
the weight update of reinforcement learning: one rank trains, the others get its weights.

    python lessons/broadcast.py
    torchrun --nproc-per-node 4 lessons/broadcast.py

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
# Four ranks. Rank r starts with `[10 * r, 10 * r + 1, 10 * r + 2]`: the tens name the rank. The root is the last rank, so everyone
# ends with what rank 3 had.
#
# | rank | before | after |
# |---|---|---|
# | 0 | [0, 1, 2] | [30, 31, 32] |
# | 1 | [10, 11, 12] | [30, 31, 32] |
# | 2 | [20, 21, 22] | [30, 31, 32] |
# | 3 | [30, 31, 32] | [30, 31, 32] |

# %% [markdown]
# ## The code
#
# The same line on every rank: on the root `x` is read, on the others it is overwritten. `src` has no default.


# %%
def broadcast(rank, world_size, device):
    x = 10 * rank + torch.arange(3, device=device)
    before = x.clone()
    root = world_size - 1

    dist.broadcast(x, src=root)

    check(x, 10 * root + torch.arange(3), "broadcast")
    return {"before": before, "after": x}


# %%
if __name__ == "__main__":
    run(broadcast)

# %% [markdown]
# ### Two roots, two lengths
#
# A receiver brings a tensor of the right length and dtype; what is in it does not matter (in a program: `torch.empty`). The message
# does not say how long it is. Where the receivers cannot know, broadcast the length first, as one number.


# %%
def broadcast_two_roots(rank, world_size, device):
    first, last = 0, world_size - 1
    limits = torch.tensor([10, 20], device=device) if rank == first else torch.full((2,), -1, device=device)
    samples = torch.arange(1, 6, device=device) if rank == last else torch.full((5,), -1, device=device)

    dist.broadcast(limits, src=first)
    dist.broadcast(samples, src=last)  # the same order on every rank

    check(limits, torch.tensor([10, 20]), "broadcast, src=0")
    check(samples, torch.tensor([1, 2, 3, 4, 5]), "broadcast, src=n-1")
    return {"from the first": limits, "from the last": samples}


# %%
if __name__ == "__main__":
    run(broadcast_two_roots)

# %% [markdown]
# ### Every root once
#
# Row r of the table is rank r's to fill, and each rank is the root once.


# %%
def broadcast_every_root(rank, world_size, device):
    table = torch.full((world_size, 2), -1, device=device)
    table[rank] = torch.tensor([rank, rank * rank], device=device)

    for root in range(world_size):
        dist.broadcast(table[root], src=root)

    ranks = torch.arange(world_size)
    check(table, torch.stack([ranks, ranks * ranks], dim=1), "broadcast from every root")
    return {"own row": [rank, rank * rank], "table": table}


# %% [markdown]
# **Predict first.** `table[root]` is an expression, not a variable. Is `table` filled, or does what arrives land in a row that
# nobody keeps? The tables start with -1.

# %%
if __name__ == "__main__":
    run(broadcast_every_root)

# %% [markdown]
# **Why.** `table[root]` is a view: it shares the memory of the table, so `broadcast` writes into the table itself. That is what "in
# place" buys. After n broadcasts everyone has every row, which is what a single `all_gather` does.

# %% [markdown]
# ### New weights for everyone
#
# The last rank trains; the others generate text with a copy of the model, which grows old. `state_dict()` gives a dictionary of
# tensors by name, and each of them is broadcast. Nothing is loaded back with `load_state_dict`. The model answers `[1, 10]` with
# `1 * w0 + 10 * w1 + b`: 37 with the trainer's weights, -12 with the old ones.


# %%
def broadcast_weights(rank, world_size, device):
    trainer = world_size - 1
    model = torch.nn.Linear(2, 1, device=device)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(-1)  # old weights
        if rank == trainer:
            model.weight.copy_(torch.tensor([[2.0, 3.0]]))
            model.bias.fill_(5)
    question = torch.tensor([1.0, 10.0], device=device)
    before = model(question)

    for tensor in model.state_dict().values():  # in the same order on every rank: the order of the layers
        dist.broadcast(tensor, src=trainer)

    after = model(question)
    check(model.weight, torch.tensor([[2.0, 3.0]]), "broadcast(weight)")
    check(model.bias, torch.tensor([5.0]), "broadcast(bias)")
    check(after, torch.tensor([37.0]), "the answer after broadcast")
    role = "trainer" if rank == trainer else "generator"
    return {"role": role, "answer before": before.item(), "answer after": after.item()}


# %% [markdown]
# **Predict first.** What do the generators answer afterwards? Does a broadcast into that dictionary change the model?

# %%
if __name__ == "__main__":
    run(broadcast_weights)

# %% [markdown]
# **Why.** The tensors of `state_dict()` share memory with the model, so a broadcast into them changes it where it stands.
# `state_dict()` also holds what `parameters()` leaves out: buffers, such as the running mean of a BatchNorm.

# %%
STEPS = [broadcast, broadcast_two_roots, broadcast_every_root, broadcast_weights]

# %% [markdown]
# ## The proof
#
# Every rank compares every element with the root's, the root too: it must keep what it sent. Each rank brings other values, and the
# root is not always rank 0, so a root that is ignored shows. The weights are also proved by what the model answers:
# 1 * 2 + 10 * 3 + 5 = 37; the old ones say -1 - 10 - 1 = -12.

# %% [markdown]
# ## The cost
#
# For S bytes on n ranks, as a chain: n - 1 steps, in which every rank but the last sends S bytes; cut into many small pieces the
# tensor flows through all links at once, and takes hardly longer than one link needs for S bytes. As a tree: about log2(n) steps,
# better for small messages. In memory: S bytes on each rank, the tensor itself. Each call has a cost of its own, whatever it
# carries: programs with many small tensors pack them in one flat tensor and broadcast that.
#
# Bus-bandwidth factor: `1`. (Algorithm bandwidth is S / time; every byte must enter every rank but the root once, so it is already
# what the links can do.)

# %% [markdown]
# ## Pitfalls
#
# - Every rank must name the same root. On gloo it is no error to name another one: some ranks go on, some wait for the time limit.
# - Nobody compares lengths. On gloo a root that sends less than the others expect leaves their last elements as they were, in
#   silence; one that sends more kills the receiving process.
# - Nobody compares shapes or dtypes either: a `[2, 3]` arrives in a `[3, 2]` row by row, and int32 arrives in float32 as garbage.
#   While you search for such a mistake, run with `TORCH_DISTRIBUTED_DEBUG=DETAIL`: it compares before each call.
# - `dist.broadcast(x.float(), src=0)` fills a copy that nobody keeps, and `x` stays as it was.
# - `src` is a global rank, also with `group=`; `group_src` counts within the group.
# - It is no barrier. Nobody has the data before the root has sent it; beyond that, a rank may leave while others have not yet come.
# - A column `x[:, 0]` is not contiguous: gloo takes it, NCCL wants contiguous tensors.

# %% [markdown]
# ## Where it is used
#
# DDP sends the parameters and buffers of rank 0 to all when it is built, so that all start alike. In RLHF the trainer sends new
# weights to the ranks that generate. ZeroRedundancyOptimizer lets each rank update a part of the parameters, and then broadcast it.
# A seed, a configuration, the decision to stop: whatever one rank decides for all.

# %% [markdown]
# ## Change and try
#
# Each of these is one change in one cell: make it, run that cell and the one after it, and undo it.
#
# 1. In `broadcast`, change `src=root` to `src=0`. Which ranks hold something wrong, the old root too? It says
#    `got [0, 1, 2], should be [30, 31, 32]`: the root of before is now overwritten like the others.
# 2. In `broadcast_every_root`, change `dist.broadcast(table[root], src=root)` to `dist.broadcast(table[root].clone(), src=root)`.
#    The same shapes, the same messages. It says `should be [[0, 0], [1, 1], [2, 4], [3, 9]]`: on receivers the copies were filled,
#    and dropped.
# 3. In `broadcast_two_roots`, change `torch.full((5,), -1, device=device)` to `torch.full((7,), -1, device=device)`. The root sends
#    5 numbers, the others expect 7. Is that an error, or a wait? On gloo neither. It says
#    `got [1, 2, 3, 4, 5, -1, -1], should be [1, 2, 3, 4, 5]`.

# %% [markdown]
# ## Read on
#
# In PyTorch's documentation:
#
# - [`broadcast`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.broadcast)
#
# Next lesson: [all_reduce](../notebooks/all_reduce.ipynb), in which every rank's tensor counts.
