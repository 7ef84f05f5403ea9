# %% [markdown]
"""
# all_gather: every rank gets the tensors of all ranks

`all_gather` gives every rank the tensors of all ranks, in rank order.

The weights of a large layer lie in pieces, one on each rank, but to run the layer a rank needs all
of them. Or each rank has predicted its own share of the examples, and you want all predictions in
one place. At the end of this lesson you can put the pieces together, also pieces of unequal length.

    python lessons/all_gather.py
    torchrun --nproc-per-node 4 lessons/all_gather.py
"""

# %%
from collectives import check, run
import torch
import torch.distributed as dist

# %% [markdown]
# ## The call
#
# ```python
# dist.all_gather(tensor_list, tensor, group=None, async_op=False)
# ```
#
# | argument | meaning |
# |---|---|
# | `tensor_list` | one tensor for each rank, to be filled |
# | `tensor` | what this rank contributes; it stays as it is |
# | `group` | the ranks that take part; None is all of them |
# | `async_op` | True: return a [`Work`](../docs/glossary.md#work) at once |


# %%
def all_gather(rank, world_size, device):
    x = 10 * rank + torch.tensor([1, 2], device=device)
    # subtle: n tensors; `[torch.empty(2)] * n` is one tensor n times
    pieces = [torch.full_like(x, -1) for _ in range(world_size)]
    dist.all_gather(pieces, x)
    # proof
    owners = [10 * r + torch.tensor([1, 2]) for r in range(world_size)]
    check([pieces, x], [owners, owners[rank]], "all_gather")
    return {"x": x, "pieces": pieces}


# %%
if __name__ == "__main__":
    run(all_gather)

# %% [markdown]
# The tens name the rank: piece r is that of rank r, and every rank has the same list.
#
# **Write it yourself**, in your [folder of exercises](../README.md#exercises):
#
# ```sh
# collectives practice all_gather_from_broadcasts
# ```

# %% [markdown]
# ### Into one tensor
#
# `all_gather_single` fills one tensor instead of a list. It has this name since torch 2.13: an
# older torch has it as `all_gather_into_tensor`, which newer ones still know, but 2.13 warns that
# this name is deprecated. The pieces lie end to end, in a tensor of 2 n elements. gloo refuses a
# table of shape (n, 2) for pieces of shape (2), but takes `table.view(-1)`, the same memory in one
# dimension: a [view](../docs/glossary.md#view).


# %%
def into_one_tensor(rank, world_size, device):
    x = 10 * rank + torch.tensor([1, 2], device=device)
    end_to_end = torch.full((2 * world_size,), -1, device=device)
    dist.all_gather_single(end_to_end, x)
    table = torch.full((world_size, 2), -1, device=device)
    dist.all_gather_single(table.view(-1), x)
    # proof
    rows = torch.stack([10 * r + torch.tensor([1, 2]) for r in range(world_size)])
    check([end_to_end, table], [rows.flatten(), rows], "all_gather_single")
    return {"end to end": end_to_end, "table": table}


# %%
if __name__ == "__main__":
    run(into_one_tensor)

# %% [markdown]
# ### Unequal lengths
#
# All ranks must pass the same length, although the docstring allows others. On gloo a buffer of
# another length than the rank's own piece [raises an error](../notebooks/mistakes/arguments.ipynb),
# and a longer piece from another rank kills the process. So gather the lengths,
# [pad](../docs/glossary.md#padding) every piece to the longest, gather the pieces, and trim them.
# Here rank r holds r + 1 numbers. Padding is 1, which is also a number of rank 0: only the lengths
# tell one from the other. A buffer that is not yet filled holds -2.

# %% [markdown]
# **Predict first.** The four ranks hold 1, 2, 3 and 4 numbers, ten together. How many numbers do
# the n buffers of a rank hold after the second call?


# %%
def unequal_lengths(rank, world_size, device):
    x = 10 * rank + torch.arange(1, rank + 2, device=device)
    lengths = torch.full((world_size,), -1, device=device)
    dist.all_gather_single(lengths, torch.tensor([len(x)], device=device))
    lengths = lengths.tolist()
    padded = torch.nn.functional.pad(x, (0, max(lengths) - len(x)), value=1)
    pieces = [torch.full_like(padded, -2) for _ in lengths]
    dist.all_gather(pieces, padded)
    trimmed = [piece[:length] for piece, length in zip(pieces, lengths, strict=True)]
    held = sum(len(piece) for piece in pieces)
    # proof
    owners = [10 * r + torch.arange(1, r + 2) for r in range(world_size)]
    check(trimmed, owners, "all_gather, padded and trimmed")
    check(held, world_size**2, "the length of all padded pieces")
    return {"x": x, "trimmed": trimmed, "held": held}


# %%
if __name__ == "__main__":
    run(unequal_lengths, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 16: four pieces, each as long as the longest, so six of the numbers are padding.
#
# </details>

# %% [markdown]
# More to write: `collectives practice texts_as_padded_bytes`, which is this step with texts, and
# `collectives practice all_gather_as_a_ring`, with messages.

# %%
STEPS = [all_gather, into_one_tensor, unequal_lengths]

# %% [markdown]
# ## Pitfalls
#
# - Input and output must have the same dtype. int64 into float32 is refused.
# - `all_gather` passes no gradients back. Where `backward()` must go through the gathered tensors,
#   gather them with a [functional collective](../notebooks/training/functional.ipynb).
# - [`all_gather_object`](../notebooks/gather.ipynb) gathers any Python object, and may run code of
#   its sender: use it only among ranks that you trust.

# %% [markdown]
# ## Change and try
#
# Make one change, run its cell and the next one, and undo it.
#
# 1. In `all_gather`, change `[torch.full_like(x, -1) for _ in range(world_size)]` to
#    `[torch.full_like(x, -1)] * world_size`. There is no error. What is in the four entries?
#
#    <details><summary>Answer</summary>
#
#    You get `rank 0/4: got [[[31, 32], [31, 32], [31, 32], [31, 32]], [1, 2]], should be [[[1, 2],
#    [11, 12], [21, 22], [31, 32]], [1, 2]] [all_gather, gloo]`. It is one tensor four times, and
#    the piece that is written last stays.
#
#    </details>

# %% [markdown]
# ## Read on
#
# In PyTorch's documentation:
#
# - [`all_gather`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_gather)
# - [`all_gather_single`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_gather_single)
#
# Every rank now has everything. Next lesson: [reduce_scatter](../notebooks/reduce_scatter.ipynb),
# for ranks that need only their piece of a sum.
