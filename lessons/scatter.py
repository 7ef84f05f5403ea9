# %% [markdown]
"""
# scatter

One rank reads the data, and each rank needs its own share. `scatter` takes a list of n tensors on
one rank, the root, and gives number r to rank r.

You will see a list of pieces on the root and `None` elsewhere; nine rows for four ranks; and an
int32 that is read as a float32.

    python lessons/scatter.py
    torchrun --nproc-per-node 4 lessons/scatter.py
"""

# %%
from collectives import check
from collectives.lesson import run
import torch
import torch.distributed as dist

# %% [markdown]
# ## The call
#
# `src` is the root. It passes the list of n pieces, its own among them, and every other rank passes
# `None`. Every rank brings a tensor that receives its piece. Here it holds -1 at first, so that you
# see what the call writes.


# %%
def scatter(rank, world_size, device):
    root = world_size - 1
    x = torch.full((2,), -1, device=device)
    before, pieces = x.clone(), None
    if rank == root:
        pieces = [torch.tensor([10 * r + 1, 10 * r + 2], device=device) for r in range(world_size)]
    dist.scatter(x, pieces, src=root)
    # proof: and a scatter leaves the root's pieces alone
    expected = [torch.tensor([10 * r + 1, 10 * r + 2]) for r in range(world_size)]
    check(x, expected[rank], "scatter")
    check(pieces, expected if rank == root else None, "the root's pieces after scatter")
    return {"pieces": pieces, "before": before, "after": x}


# %%
if __name__ == "__main__":
    run(scatter)

# %% [markdown]
# Four ranks print this:
#
# | rank | pieces | before | after |
# |---|---|---|---|
# | 0 | - | [-1, -1] | [1, 2] |
# | 1 | - | [-1, -1] | [11, 12] |
# | 2 | - | [-1, -1] | [21, 22] |
# | 3 | [[1, 2], [11, 12], [21, 22], [31, 32]] | [-1, -1] | [31, 32] |
#
# The tens name the rank that a piece is for. In the picture, everything has the colour of rank 3,
# the root, because everything comes from there. Follow the pieces from left to right: the first
# goes to rank 0, the last stays.

# %% [markdown]
# ### Nine rows for four ranks
#
# All pieces of a scatter must have the same shape, and nine rows do not divide by four. So tell
# each rank how many rows it gets, pad all pieces to the longest, and let each rank cut off its
# padding. `tensor_split` always gives n pieces; `chunk` may give fewer.


# %%
def scatter_uneven_rows(rank, world_size, device):
    count = 2 * world_size + 1  # one row more than divides
    longest = -(-count // world_size)  # rounded up
    lengths = pieces = None
    if rank == 0:
        shards = torch.arange(1, count + 1, device=device).tensor_split(world_size)
        lengths = [torch.tensor([len(shard)], device=device) for shard in shards]
        padded = torch.nn.utils.rnn.pad_sequence(shards, batch_first=True, padding_value=-1)
        pieces = list(padded.unbind())

    length = torch.full((1,), -1, device=device)
    dist.scatter(length, lengths, src=0)
    x = torch.full((longest,), -2, device=device)
    dist.scatter(x, pieces, src=0)
    mine = x[: length.item()]
    # proof: rank 0 gets the extra row
    start, stop = (1, 4) if rank == 0 else (2 * rank + 2, 2 * rank + 4)
    check(length, torch.tensor([stop - start]), "scatter(lengths)")
    check(mine, torch.arange(start, stop), "scatter(padded pieces)")
    check(x[length.item() :], torch.full((longest - stop + start,), -1), "scatter(padding)")
    return {"length": length, "received": x, "my rows": mine}


# %% [markdown]
# **Predict first.** The longest piece has three rows. How many rows of padding are there in the
# four pieces together? Write the number down.

# %%
if __name__ == "__main__":
    run(scatter_uneven_rows)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Three: the pieces have 3, 2, 2 and 2 rows, and each of the three short ones gets a row of -1. The
# picture shows both calls, first the lengths, then the padded pieces.
#
# </details>

# %% [markdown]
# ### The same bytes in another dtype
#
# `torch.arange(4)` is int64 and `torch.empty(4)` is float32, so the two sides of a scatter easily
# differ. `scatter` converts nothing. The root has both tensors, and it refuses to scatter if their
# dtypes differ. The other ranks see only their own tensor, and the dtype does not travel. Here all
# ranks agree on int32. The last column shows what a rank would read that had made room for float32,
# which has four bytes as well.


# %%
def scatter_one_dtype(rank, world_size, device):
    root, pieces = world_size - 1, None
    x = torch.full((2,), -1, dtype=torch.int32, device=device)
    if rank == root:
        numbers = torch.arange(1, 2 * world_size + 1, device=device)  # int64
        pieces = list(numbers.to(torch.int32).chunk(world_size))
    dist.scatter(x, pieces, src=root)
    # proof
    expected = torch.tensor([2 * rank + 1, 2 * rank + 2], dtype=torch.int32)
    check(x, expected, "scatter(int32)")
    return {"int32": x, "read as float32": str(x.view(torch.float32).tolist())}


# %% [markdown]
# **Predict first.** Rank 0 receives the int32 numbers 1 and 2. What would the 1 be if rank 0 had
# made room for float32: 1.0, an error, or another number? Write it down.

# %%
if __name__ == "__main__":
    run(scatter_one_dtype)

# %% [markdown]
# <details><summary>Answer</summary>
#
# It would be 1.4e-45, the smallest float32 above 0. It has the same bits as the int32 number 1.
# Most programs print it as 0.0000, so the data seems to be zeros. The third change at the end of
# this lesson makes the mistake, and there is no error.
#
# </details>

# %%
STEPS = [scatter, scatter_uneven_rows, scatter_one_dtype]

# %% [markdown]
# ## The cost
#
# S is the size of the whole in bytes. The root sends (n - 1) / n * S bytes, and every other rank
# receives S / n bytes. All of that leaves through the link of the root, and that link sets the
# pace. In memory, each rank needs S / n bytes, and the root also the whole.
#
# The alternative is to `broadcast` the whole, and to keep `whole[rank]`. Then every rank receives S
# bytes. It also keeps all of them, because a slice is a view: as long as you hold the slice, the
# whole stays in memory.
#
# Bus-bandwidth factor: `(n - 1) / n`. The algorithm bandwidth is S / time. The root's own part does
# not travel.

# %% [markdown]
# ## Pitfalls
#
# - As in `gather`, the list belongs to the root alone, and it must be a `list` of n tensors. The
#   tuple that `chunk` gives is a TypeError, and `chunk(4)` cuts nine rows into three pieces.
# - Only the root compares dtypes. On gloo, int64 pieces for ranks that have room for as many
#   float32 [kill these ranks](../notebooks/mistakes/buffers.ipynb), because the message is longer
#   than the tensor. With dtypes of the same size you get [other numbers, and no
#   error](../notebooks/mistakes/arguments.ipynb).
# - Do not receive into a piece of the whole. With `x = pieces[0]` on rank 3 as root, the root's own
#   piece overwrites piece 0.
# - Without `src`, the root is rank 0.

# %% [markdown]
# ## Where it is used
#
# One rank reads a file or a batch, and hands each rank its share. `distribute_tensor` of DTensor
# scatters a tensor that is to be sharded, and broadcasts one that is to be replicated.
# `torch.distributed.checkpoint` hands each rank its part of the plan with `scatter_object_list`.

# %% [markdown]
# ## Change and try
#
# Each of these is one change in one cell. Make it, run that cell and the one after it, and undo it.
#
# 1. In `scatter_uneven_rows`, change `tensor_split(world_size)` to `chunk(world_size)`. Both cut
#    nine rows for four ranks. Is there a difference?
#
#    <details><summary>Answer</summary>
#
#    You get `rank 0 raised`. `chunk` makes pieces of three rows, and there are only three of them.
#
#    </details>
#
# 2. In `scatter_one_dtype`, change `numbers.to(torch.int32)` to `numbers`. Now the pieces are
#    int64, and every rank has room for int32. Who notices?
#
#    <details><summary>Answer</summary>
#
#    You get `rank 3 raised ValueError: Invalid usage of tensors with different dtypes`. Only the
#    root sees both, and it sends nothing. The others would wait until the time limit.
#
#    </details>
#
# 3. In `scatter_one_dtype`, change `x = torch.full((2,), -1, dtype=torch.int32` to `x =
#    torch.full((2,), -1, dtype=torch.int32 if rank == root else torch.float32`. Only the root makes
#    room for int32. Who notices?
#
#    <details><summary>Answer</summary>
#
#    You get `e-45`, in a proof that fails. gloo copies the bytes and raises no error.
#
#    </details>

# %% [markdown]
# ## Write it yourself
#
# Write `on_all_ranks(function, numbers, root)`. On the root, `numbers` is a float tensor with one
# number for each rank (`None` elsewhere); each rank calls `function` on its number, and the root
# returns the tensor of all results.
#
# <details><summary>One way to write it</summary>
#
# ```python
# def on_all_ranks(function, numbers, root):
#     is_root = dist.get_rank() == root
#     x = torch.empty(1)
#     dist.scatter(x, list(numbers.split(1)) if is_root else None, src=root)
#     results = [torch.empty(1) for _ in numbers] if is_root else None
#     dist.gather(function(x), results, dst=root)
#     return torch.cat(results) if is_root else None
#
#
# def try_on_all_ranks(rank, world_size, device):
#     root = world_size - 1
#     numbers = torch.arange(1.0, world_size + 1) if rank == root else None
#     squares = on_all_ranks(torch.square, numbers, root)
#     check(squares, numbers * numbers if rank == root else None, "on_all_ranks")
#     return {"squares": squares}
# ```
#
# </details>

# %% [markdown]
# ## Read on
#
# - M. Barnett and others, *Interprocessor Collective Communication Library (InterCom)* (1994): a
#   broadcast of a large tensor, built as a scatter and an all_gather.
# - gloo's own [scatter.cc](https://github.com/pytorch/gloo/blob/main/gloo/scatter.cc): the root
#   sends straight to every rank.
#
# In PyTorch's documentation:
#
# - [`scatter`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.scatter)
# - [`gather`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.gather)
# - [`get_rank`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.get_rank)
#
# Next lesson: [all_to_all](../notebooks/all_to_all.ipynb), in which every rank is the root at the
# same time.
