# %% [markdown]
"""
# gather

Every rank gives a tensor, and one rank, the root (`dst`), ends up with all of them, in rank order.

A **rank** is one process of the job, and its number, from 0; the **world size**, n below, is how many there are. The **root** is
the one rank with a part of its own. A **group** is some of the ranks, for calls among themselves. The **backend** is the library
that moves the bytes: gloo (CPU), NCCL (GPU) or MPI.

You will see a list of buffers on the root and `None` elsewhere, a gather to every root, the memory that it takes and where, and
text of different lengths, gathered as Python objects.

    python lessons/gather.py
    torchrun --nproc-per-node 4 lessons/gather.py

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
# Four ranks. Rank r brings `[10 * r, 10 * r + 1]`; the root is the last rank, and it alone has buffers to fill.
#
# | rank | own | gathered |
# |---|---|---|
# | 0 | [0, 1] | - |
# | 1 | [10, 11] | - |
# | 2 | [20, 21] | - |
# | 3 | [30, 31] | [[0, 1], [10, 11], [20, 21], [30, 31]] |

# %% [markdown]
# ## The code
#
# The root passes a list of n tensors to be filled, one for each rank, its own among them. Every other rank passes `None`.


# %%
def gather(rank, world_size, device):
    x = torch.tensor([10 * rank, 10 * rank + 1], device=device)
    root = world_size - 1
    buffers = [torch.full_like(x, -1) for _ in range(world_size)] if rank == root else None

    dist.gather(x, buffers, dst=root)

    if rank == root:
        check(buffers, [torch.tensor([10 * r, 10 * r + 1]) for r in range(world_size)], "gather")
    check(x, torch.tensor([10 * rank, 10 * rank + 1]), "own tensor after gather")
    return {"own": x, "gathered": buffers}


# %%
if __name__ == "__main__":
    run(gather)

# %% [markdown]
# ### Every root once
#
# Rank r has one number for each root: `10 * r + root`. The ranks are the root in turn.


# %%
def gather_to_every_root(rank, world_size, device):
    own = 10 * rank + torch.arange(world_size, device=device)
    for root in range(world_size):
        buffers = [torch.full((1,), -1, device=device) for _ in range(world_size)] if rank == root else None
        dist.gather(own[root : root + 1], buffers, dst=root)
        if rank == root:
            received = torch.cat(buffers)

    check(received, 10 * torch.arange(world_size) + rank, "gather to every root")
    check(own, 10 * rank + torch.arange(world_size), "own tensor after gather")
    return {"own": own, "received": received}


# %% [markdown]
# **Predict first.** Rank 2 starts with `[20, 21, 22, 23]`. What does it hold in the end?

# %%
if __name__ == "__main__":
    run(gather_to_every_root)

# %% [markdown]
# **Why.** Root q ends with everybody's number for q. Together the n gathers do what a single `all_to_all` does: rows become
# columns.

# %% [markdown]
# ### One tensor instead of a list, and what it takes
#
# The buffers may be the rows of one tensor: `unbind` gives views, so the root needs no `cat` and no second copy afterwards. Each
# rank has 1024 numbers of 4 bytes, which is 4096 bytes.


# %%
def gather_into_rows(rank, world_size, device):
    x = torch.full((1024,), float(rank), device=device)
    root = world_size - 1
    table = torch.full((world_size, 1024), -1.0, device=device) if rank == root else None

    dist.gather(x, list(table.unbind()) if rank == root else None, dst=root)

    if rank == root:
        check(table, torch.arange(float(world_size)).reshape(-1, 1).expand(-1, 1024), "gather into rows")
    check(x, torch.full((1024,), float(rank)), "own tensor after gather")
    return {"bytes, own": x.untyped_storage().nbytes(), "bytes, gathered": table.untyped_storage().nbytes() if rank == root else 0}


# %% [markdown]
# **Predict first.** How many bytes does the root need for the result, and how many do the others? And if it were `all_gather`?

# %%
if __name__ == "__main__":
    run(gather_into_rows)

# %% [markdown]
# **Why.** Only the root makes room, n times its own tensor. With `all_gather` everyone would need as much as the root. That is the
# reason to choose `gather`, and the reason why the root is where memory runs out first.

# %% [markdown]
# ### Text, and any other object
#
# `gather` wants the same shape from every rank. `gather_object` takes any object that can be pickled, of any length: it turns each
# into bytes, pads them, gathers the bytes, and unpickles them on the root. The root passes a list of n places.
#
# Use it only among ranks that you trust: unpickling runs whatever code the sender has put into the bytes, on the root, as you.


# %%
def gather_text(rank, world_size, device):
    text = " ".join(["word"] * rank)  # rank 0 has none
    root = world_size - 1
    texts = [None] * world_size if rank == root else None

    dist.gather_object(text, texts, dst=root)

    if rank == root:
        check(texts, [" ".join(["word"] * r) for r in range(world_size)], "gather_object")
    check(text, " ".join(["word"] * rank), "own text after gather_object")
    return {"length": len(text), "gathered": texts}


# %%
if __name__ == "__main__":
    run(gather_text)

# %%
STEPS = [gather, gather_to_every_root, gather_into_rows, gather_text]

# %% [markdown]
# ## The proof
#
# The root compares every buffer, and each rank's numbers tell where they come from and to whom they go: buffers in another order,
# or another root, show. The buffers start at -1, which no rank sends. Every rank proves that its own tensor is unchanged: unlike
# `reduce`, `gather` only reads it.

# %% [markdown]
# ## The cost
#
# For S bytes in the gathered whole on n ranks: each rank but the root sends its S / n bytes once, and the root receives
# (n - 1) / n * S bytes. All of that enters through the root's link, which is what limits it. In memory: S bytes on the root, the
# others only their own.
#
# Bus-bandwidth factor: `(n - 1) / n`. (Algorithm bandwidth is S / time, with S the *whole*; the root's own part does not travel.)

# %% [markdown]
# ## Pitfalls
#
# - A list on a rank that is not the root, or none on the root, is a ValueError on that rank alone. Those who need it go on waiting.
# - The list must be a `list`: the tuple that `unbind` or `chunk` gives is a TypeError, again on the root alone.
# - `[buffer] * n` is n times the *same* tensor: all pieces land in it, one over the other, and no error tells.
# - Every rank must bring the same shape and dtype. On gloo a rank that brings less is not noticed, and the rest of its buffer is
#   undefined; one that brings more kills the root. Pad to the longest and send the lengths too, or gather objects.
# - Left out, `dst` is rank 0. It is a global rank, also with `group=`; `group_dst` counts within the group.
# - `gather_object` of CUDA tensors pickles them by way of the host: for tensors use `gather`. On NCCL call `torch.cuda.set_device`
#   first: the bytes travel through the current device.

# %% [markdown]
# ## Where it is used
#
# Evaluation: each rank judges its share, and one rank writes all answers in a file. Logs and timings of all ranks in one place.
# `torch.distributed.checkpoint` gathers every rank's plan as objects on one rank, which makes the plan for all.

# %% [markdown]
# ## Change and try
#
# Each of these is one change in one cell: make it, run that cell and the one after it, and undo it.
#
# 1. In `gather`, change `[torch.full_like(x, -1) for _ in range(world_size)]` to `[torch.full_like(x, -1)] * world_size`. Four
#    entries, and no error. It says `got [[30, 31], [30, 31], [30, 31], [30, 31]]`: one tensor four times, and the last piece stays.
# 2. In `gather_into_rows`, change `list(table.unbind())` to `table.unbind()`. A tuple of four tensors. It says
#    `rank 3 raised TypeError`: a `list` is wanted. The other ranks had nothing to complain of.
# 3. In `gather_text`, change `texts = [None] * world_size if rank == root else None` to `texts = [None] * world_size`. Now everyone
#    brings a list. Do the others get a copy? It says `must NOT be specified on non-destination ranks`.

# %% [markdown]
# ## Read on
#
# In PyTorch's documentation:
#
# - [`gather`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.gather)
# - [`gather_object`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.gather_object)
#
# Next lesson: [scatter](../notebooks/scatter.ipynb), the way back.
