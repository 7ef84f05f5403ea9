# %% [markdown]
"""
# gather

Each rank has evaluated its share of the test set, and one rank writes all answers into a file.
`gather` brings one tensor of every rank to one rank, the root, in rank order.

You will see a list of buffers on the root and `None` elsewhere; answers that are all there, in the
wrong order; how much memory the root needs; and texts of different lengths.

    python lessons/gather.py
    torchrun --nproc-per-node 4 lessons/gather.py
"""

# %%
from collectives import check
from collectives.lesson import run
import torch
import torch.distributed as dist

# %% [markdown]
# ## The call
#
# `dst` is the root. It passes a list of n tensors to be filled, one for each rank, its own among
# them. Every other rank passes `None`.


# %%
def gather(rank, world_size, device):
    root = world_size - 1
    x = torch.tensor([10 * rank + 1, 10 * rank + 2], device=device)
    buffers = None
    if rank == root:
        buffers = [torch.full_like(x, -1) for _ in range(world_size)]
    dist.gather(x, buffers, dst=root)
    # proof: on the root; and a gather leaves x alone
    expected = [torch.tensor([10 * r + 1, 10 * r + 2]) for r in range(world_size)]
    check(buffers, expected if rank == root else None, "gather")
    check(x, expected[rank], "own tensor after gather")
    return {"own": x, "gathered": buffers}


# %%
if __name__ == "__main__":
    run(gather)

# %% [markdown]
# Four ranks print this:
#
# | rank | own | gathered |
# |---|---|---|
# | 0 | [1, 2] | - |
# | 1 | [11, 12] | - |
# | 2 | [21, 22] | - |
# | 3 | [31, 32] | [[1, 2], [11, 12], [21, 22], [31, 32]] |
#
# The tens name the rank that a number comes from. In the picture, look at the row of rank 3, the
# root: it has one tensor in the colour of each rank. The other ranks have no buffer at all.

# %% [markdown]
# ### All answers, in order
#
# The test set has three samples for each rank, and the answer to the first sample is 1, to the
# second 2, and so on. A `DistributedSampler` deals the samples like cards: rank r gets number r,
# then r + n, then r + 2 n. So the tensors arrive by rank, and the file should be by sample.
# `stack(buffers, dim=1)` puts them side by side as columns; read row by row, that is the order of
# the samples.


# %%
def answers_in_order(rank, world_size, device):
    answers = torch.arange(rank, 3 * world_size, world_size, device=device) + 1
    buffers = by_rank = by_sample = None
    if rank == 0:
        buffers = [torch.full_like(answers, -1) for _ in range(world_size)]
    dist.gather(answers, buffers, dst=0)
    if rank == 0:
        by_rank = torch.cat(buffers)
        by_sample = torch.stack(buffers, dim=1).flatten()
    # proof
    check(by_sample, torch.arange(3 * world_size) + 1 if rank == 0 else None, "gather")
    return {"answers": answers, "by rank": by_rank, "by sample": by_sample}


# %% [markdown]
# **Predict first.** Four ranks, twelve answers. Suppose that rank 0 writes the four tensors one
# after the other, which is the column "by rank". Which answer stands second in the file, where 2
# should be? Write it down.

# %%
if __name__ == "__main__":
    run(answers_in_order)

# %% [markdown]
# <details><summary>Answer</summary>
#
# It is 5, the second answer of rank 0. All twelve answers are there, so their number is right and
# so is their sum. Only a comparison with the samples shows the mistake.
#
# </details>

# %% [markdown]
# ### One tensor in place of a list, and what it takes
#
# The buffers may be the rows of one tensor. `unbind` gives the rows as views, so the root needs no
# second copy to put them together. Each rank has 1024 numbers of 4 bytes, which are 4096 bytes.


# %%
def gather_into_rows(rank, world_size, device):
    x = torch.full((1024,), rank + 1.0, device=device)
    table = rows = None
    if rank == 0:
        table = torch.full((world_size, 1024), -1.0, device=device)
        rows = list(table.unbind())
    dist.gather(x, rows, dst=0)
    bytes_gathered = table.untyped_storage().nbytes() if rank == 0 else 0
    # proof
    expected = torch.arange(1.0, world_size + 1).reshape(-1, 1).expand(-1, 1024)
    check(table, expected if rank == 0 else None, "gather into rows")
    return {"bytes, own": x.untyped_storage().nbytes(), "bytes, gathered": bytes_gathered}


# %% [markdown]
# **Predict first.** How many bytes does rank 0 need for the result, and how many does rank 3 need?
# Write both numbers down.

# %%
if __name__ == "__main__":
    run(gather_into_rows)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Rank 0 needs 16384 bytes, and rank 3 none. With `all_gather`, every rank would need 16384. This is
# the reason to choose `gather`, and it is why the root runs out of memory first.
#
# </details>

# %% [markdown]
# ### Text, and any other object
#
# `gather` wants the same shape from every rank. [all_gather](../notebooks/all_gather.ipynb) shows
# how to pad, gather and trim pieces of unequal lengths. `gather_object` takes any object that can
# be pickled: it turns each into bytes, pads them all to the longest, gathers the bytes, and
# unpickles them on the root. The root passes a list of n places. Use it only among ranks that you
# trust: the root runs whatever code a sender has put into its bytes.


# %%
def gather_text(rank, world_size, device):
    text = "ha" * (rank + 1)
    texts = [None] * world_size if rank == 0 else None
    dist.gather_object(text, texts, dst=0)
    # proof
    expected = ["ha" * (r + 1) for r in range(world_size)]
    check(texts, expected if rank == 0 else None, "gather_object")
    return {"text": text, "gathered": texts}


# %%
if __name__ == "__main__":
    run(gather_text)

# %%
STEPS = [gather, answers_in_order, gather_into_rows, gather_text]

# %% [markdown]
# ## The cost
#
# S is the size of the gathered whole in bytes. Each rank but the root sends its S / n bytes once.
# The root receives (n - 1) / n * S bytes through its own link, and that link sets the pace: more
# ranks do not make a gather faster. In memory, the root needs S bytes for the result, and the
# others need nothing.
#
# Bus-bandwidth factor: `(n - 1) / n`. The algorithm bandwidth is S / time. The root's own part does
# not travel.

# %% [markdown]
# ## Pitfalls
#
# - A list on a rank that is not the root is a ValueError on that rank alone, and so is a missing
#   list on the root. The ranks that need it go on waiting: [one rank
#   raises](../notebooks/mistakes/processes.ipynb).
# - The list must be a `list`. The tuple that `unbind` or `chunk` gives is a TypeError, again on the
#   root alone.
# - Every rank must bring the same shape and dtype. On gloo, a rank that brings less is not noticed,
#   and the rest of its buffer is undefined; one that brings more kills the root.
# - Without `dst`, the root is rank 0.
# - `gather_object` copies tensors on a GPU through the CPU (documented); for tensors use `gather`.
#   With NCCL, call `torch.cuda.set_device` first, because the bytes travel through the current
#   device (documented).

# %% [markdown]
# ## Where it is used
#
# Evaluation: one rank writes all answers to a file. Logs and timings of all ranks in one place.
# `torch.distributed.checkpoint` gathers what each rank wants to save as objects on one rank, which
# makes one plan for all.

# %% [markdown]
# ## Change and try
#
# Each of these is one change in one cell. Make it, run that cell and the one after it, and undo it.
#
# 1. In `gather_into_rows`, change `list(table.unbind())` to `table.unbind()`. This is a tuple of
#    the same four tensors. Is that good enough?
#
#    <details><summary>Answer</summary>
#
#    You get `rank 0 raised TypeError`. The other ranks have nothing to complain about.
#
#    </details>
#
# 2. In `gather_text`, change `texts = [None] * world_size if rank == 0 else None` to `texts =
#    [None] * world_size`. Now every rank brings a list. Do all of them get a copy?
#
#    <details><summary>Answer</summary>
#
#    You get `must NOT be specified on non-destination ranks`. For a copy on every rank there is
#    `all_gather_object`.
#
#    </details>

# %% [markdown]
# ## Write it yourself
#
# Write `my_gather(x, dst)` with `all_gather`: it returns the list of all tensors on rank `dst`, and
# `None` on the others. Then say what it wastes.
#
# <details><summary>One way to write it</summary>
#
# ```python
# def my_gather(x, dst):
#     buffers = [torch.empty_like(x) for _ in range(dist.get_world_size())]
#     dist.all_gather(buffers, x)  # n times the memory on every rank, and n - 1 ranks drop it
#     return buffers if dist.get_rank() == dst else None
#
#
# def try_my_gather(rank, world_size, device):
#     root = world_size - 1
#     gathered = my_gather(torch.tensor([rank + 1], device=device), root)
#     expected = [torch.tensor([r + 1]) for r in range(world_size)]
#     check(gathered, expected if rank == root else None, "my_gather")
#     return {"gathered": gathered}
# ```
#
# </details>

# %% [markdown]
# ## Read on
#
# - R. Thakur, R. Rabenseifner and W. Gropp, *Optimization of Collective Communication Operations in
#   MPICH* (2005): the algorithms behind these calls, and when each of them is the best.
# - gloo's own [gather.cc](https://github.com/pytorch/gloo/blob/main/gloo/gather.cc): about sixty
#   lines of C++, in which every rank sends straight to the root.
#
# In PyTorch's documentation:
#
# - [`gather`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.gather)
# - [`gather_object`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.gather_object)
# - [`all_gather`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_gather)
# - [`get_rank`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.get_rank)
# - [`get_world_size`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.get_world_size)
#
# Next lesson: [scatter](../notebooks/scatter.ipynb), the way back.
