# %% [markdown]
"""
# all_gather

Every rank gives a tensor, and every rank ends up with all of them, in rank order.

A **rank** is one process of the job, and its number, from 0; the **world size**, n below, is how many there are. A **group** is
some of the ranks, for calls among themselves. The **backend** is the library that moves the bytes: gloo (CPU), NCCL (GPU) or MPI.

You will see the pieces arrive in a list and in one tensor, what happens when their lengths differ and the idiom that always works,
and strings gathered as Python objects: how that is done, and why only among ranks that you trust.

    python lessons/all_gather.py
    torchrun --nproc-per-node 4 lessons/all_gather.py

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
# Four ranks. Rank r starts with `[10 * r, 10 * r + 1]`: the tens name the rank. Everyone ends with all four pieces, rank 0's first.
#
# | rank | before | after |
# |---|---|---|
# | 0 | [0, 1] | [[0, 1], [10, 11], [20, 21], [30, 31]] |
# | 1 | [10, 11] | [[0, 1], [10, 11], [20, 21], [30, 31]] |
# | 2 | [20, 21] | [[0, 1], [10, 11], [20, 21], [30, 31]] |
# | 3 | [30, 31] | [[0, 1], [10, 11], [20, 21], [30, 31]] |

# %% [markdown]
# ## The code
#
# The output is a list with one tensor for each rank, which the caller makes: the call fills it in. The input stays as it is.


# %%
def all_gather(rank, world_size, device):
    x = torch.tensor([10 * rank, 10 * rank + 1], device=device)
    # subtle: n tensors, not `[torch.empty(2)] * n`, which is one tensor n times: every piece would overwrite the one before.
    pieces = [torch.full_like(x, -1) for _ in range(world_size)]

    dist.all_gather(pieces, x)

    check(pieces, [torch.tensor([10 * r, 10 * r + 1]) for r in range(world_size)], "all_gather")
    check(x, torch.tensor([10 * rank, 10 * rank + 1]), "all_gather: its input")
    return {"before": x, "after": pieces}


# %%
if __name__ == "__main__":
    run(all_gather)

# %% [markdown]
# ### Into one tensor
#
# `all_gather_into_tensor` (2.13 adds the name `all_gather_single`) fills one tensor instead of a list. Two shapes are usual. Inputs
# of shape (k, ...) can be joined end to end, to (n * k, ...), or stacked, to (n, k, ...): the same bytes in the same order. gloo
# refuses the stacked shape, so the call below gets `stacked.view(-1)`.


# %%
def concatenated_and_stacked(rank, world_size, device):
    x = torch.tensor([10 * rank, 10 * rank + 1], device=device)
    concatenated = torch.full((world_size * 2,), -1, device=device)
    dist.all_gather_into_tensor(concatenated, x)

    stacked = torch.full((world_size, 2), -1, device=device)
    dist.all_gather_into_tensor(stacked.view(-1), x)  # subtle: a view shares the memory, so `stacked` itself is filled

    check(concatenated, torch.tensor([10 * r + i for r in range(world_size) for i in range(2)]), "all_gather_into_tensor")
    check(stacked, torch.tensor([[10 * r, 10 * r + 1] for r in range(world_size)]), "all_gather_into_tensor, stacked")
    check(x, torch.tensor([10 * rank, 10 * rank + 1]), "all_gather_into_tensor: its input")
    return {"own": x, "concatenated": concatenated, "stacked": stacked}


# %% [markdown]
# **Predict first.** `stacked` itself is never given to the call, only what `view(-1)` returns. Does `stacked` hold -1 afterwards,
# or the numbers of all ranks?

# %%
if __name__ == "__main__":
    run(concatenated_and_stacked)

# %% [markdown]
# **Why.** A view is another shape of the same memory. That serves everywhere: NCCL takes both shapes, gloo this one.

# %% [markdown]
# ### Unequal lengths
#
# The list may hold a buffer of the right length for each rank, and the docstring says that unequal sizes are supported. It depends
# on the backend: NCCL can, as one broadcast from each rank; gloo refuses on every rank, before anything is sent, and the group
# stays usable. What works everywhere is to gather the lengths, pad to the longest, gather, and trim.


# %%
def gather_unequal(x):
    """Every rank's one-dimensional tensor, in rank order, whatever their lengths."""
    lengths = torch.full((dist.get_world_size(),), -1, device=x.device)
    dist.all_gather_into_tensor(lengths, torch.tensor([len(x)], device=x.device))
    lengths = lengths.tolist()
    padded = x.new_zeros(max(lengths))
    padded[: len(x)] = x
    pieces = [torch.full_like(padded, 99) for _ in lengths]
    dist.all_gather(pieces, padded)
    return [piece[:length] for piece, length in zip(pieces, lengths, strict=True)]


def unequal_lengths(rank, world_size, device):
    x = torch.full((rank + 1,), rank, device=device)  # rank r has r + 1 numbers
    gathered = gather_unequal(x)

    expected = [torch.full((r + 1,), r) for r in range(world_size)]
    check(gathered, expected, "all_gather, padded and trimmed")

    direct = [torch.full((r + 1,), -1, device=device) for r in range(world_size)]
    try:
        dist.all_gather(direct, x)
    except (RuntimeError, ValueError):  # this backend wants equal lengths
        expected = [torch.full((r + 1,), -1) for r in range(world_size)]  # and has written nothing
    check(direct, expected, "all_gather of unequal lengths")
    return {"own": x, "gathered": gathered}


# %%
if __name__ == "__main__":
    run(unequal_lengths)

# %% [markdown]
# ### Strings
#
# `all_gather_object` gathers anything that pickle can write, of any length. Inside it is the same idiom: it gathers the lengths of
# the pickles, pads them, and gathers bytes.


# %%
def gather_strings(rank, world_size, device):
    laugh = "ha" * (rank + 1) + "!"
    laughs = [None] * world_size
    dist.all_gather_object(laughs, laugh)

    # The same without pickle: a string as its UTF-8 bytes. What arrives may be wrong, but it is text and runs nothing.
    letters = torch.tensor(list(laugh.encode()), dtype=torch.uint8, device=device)
    decoded = [bytes(piece.tolist()).decode() for piece in gather_unequal(letters)]

    expected = ["ha" * (r + 1) + "!" for r in range(world_size)]
    check(laughs, expected, "all_gather_object")
    check(decoded, expected, "all_gather of UTF-8 bytes")
    return {"own": laugh, "gathered": laughs}


# %%
if __name__ == "__main__":
    run(gather_strings)

# %% [markdown]
# ### Why pickles are only for ranks that you trust
#
# A pickle is a small program: it may say "to rebuild me, call this function". Here every rank sends a `Stowaway`, which asks for a
# call of `dist.get_rank()`.


# %%
class Stowaway:
    def __reduce__(self):  # what pickle asks an object for: the function that will rebuild it, and its arguments
        return dist.get_rank, ()


def pickles_run_code(rank, world_size, device):
    arrived = [None] * world_size
    dist.all_gather_object(arrived, Stowaway())

    check(arrived, [rank] * world_size, "all_gather_object")
    return {"sent": "a Stowaway", "arrived": arrived}


# %% [markdown]
# **Predict first.** Every rank sends one `Stowaway` and receives four. What does the list `arrived` of rank 2 hold: four Stowaways,
# the numbers 0, 1, 2, 3 of their senders, or something else?

# %%
if __name__ == "__main__":
    run(pickles_run_code)

# %% [markdown]
# **Why.** No object arrives: the call runs in the receiver's process, while it unpickles and before your own code has seen
# anything, and gives the *receiver's* rank. It could have been any function, with any arguments.

# %%
STEPS = [all_gather, concatenated_and_stacked, unequal_lengths, gather_strings, pickles_run_code]

# %% [markdown]
# ## The proof
#
# Rank r's numbers can be told from everyone else's, and every rank compares every piece with what its owner had: a piece that is
# missing, or in the wrong place, shows. Output buffers start with values that no rank sends, and a call that was refused must have
# left them there.

# %% [markdown]
# ## The cost
#
# S is the size of the *whole* result, so a rank gives S / n bytes. As a ring: n - 1 steps, in each of which every rank hands on one
# piece; it sends and receives (n - 1) / n * S bytes. In memory: S bytes on every rank, n times its own piece. NCCL fills the list
# form through one flat buffer of S more bytes; the tensor form writes where it should. Padding makes S grow to n times the
# *longest* piece. `all_gather_object` adds a gather of lengths and the work of pickling; on NCCL the bytes go through the GPU.
#
# Bus-bandwidth factor: `(n - 1) / n`. (Algorithm bandwidth is S / time, with S the bytes of the whole result; times this factor it
# can be compared with what the links can do.)

# %% [markdown]
# ## Pitfalls
#
# - On gloo nobody compares lengths across ranks. Where each rank makes all its buffers as long as its *own* tensor, and those
#   differ, every rank's check passes, and a rank that receives more than it has room for dies with SIGABRT: no `except` can catch
#   that.
# - Input and output must have the same dtype: int64 into float32 is refused.
# - Gathered tensors carry no gradient back to the other ranks: to autograd they are new tensors.
# - If the next thing you do is to sum the pieces, use `all_reduce`: it needs no room for n of them.
# - The list given to `all_gather_object` must already have n entries: an empty one is an IndexError.
# - Never unpickle what comes from outside the job: `all_gather_object` trusts every rank with your process.

# %% [markdown]
# ## Where it is used
#
# FSDP gathers a layer's weights just before they are needed, and drops them afterwards. Evaluation gathers predictions, of which
# the last batch is shorter on some ranks: the padding above. Contrastive learning compares each example with those of all ranks.
# Sequence and tensor parallelism put split activations together again.

# %% [markdown]
# ## Change and try
#
# Each of these is one change in one cell: make it, run that cell and the one after it, and undo it.
#
# 1. In `all_gather`, change `[torch.full_like(x, -1) for _ in range(world_size)]` to `[torch.full_like(x, -1)] * world_size`. Four
#    entries, and no error. It says `got [[30, 31], [30, 31], [30, 31], [30, 31]]`: one tensor four times, and the last piece stays.
# 2. In `concatenated_and_stacked`, change `stacked.view(-1), x` to `stacked, x`. The sizes match, byte for byte. It says
#    `invalid tensor size at index 0 (expected (2), got (1, 2))`: gloo wants the dimensions to match, too.
# 3. In `gather_strings`, change `laughs = [None] * world_size` to `laughs = []`. Does the call append what arrives? It says
#    `IndexError`.

# %% [markdown]
# ## Read on
#
# In PyTorch's documentation:
#
# - [`all_gather`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_gather)
# - [`all_gather_into_tensor`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_gather_into_tensor)
# - [`all_gather_object`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_gather_object)
# - [`get_rank`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.get_rank)
# - [`get_world_size`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.get_world_size)
#
# Next lesson: [gather](../notebooks/gather.ipynb), for one rank instead of all.
