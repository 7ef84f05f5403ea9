# %% [markdown]
"""
# scatter: one rank gives a tensor to each rank

With `scatter`, one rank, the [root](../docs/glossary.md#root), has a list of n tensors, and rank r
receives number r.

One rank has read a file, and each rank needs its own share of it. A `broadcast` would work, but it
sends the whole to every rank, and each rank throws most of it away. At the end of this lesson you
can hand out shares, even when the rows do not divide evenly, and you know what a share costs in
memory.

    python lessons/scatter.py
    torchrun --nproc-per-node 4 lessons/scatter.py
"""

# %%
from collectives import check, run
import torch
import torch.distributed as dist

# %% [markdown]
# ## The call
#
# ```python
# dist.scatter(tensor, scatter_list=None, src=None, group=None, async_op=False, group_src=None)
# ```
#
# | argument | meaning |
# |---|---|
# | `tensor` | what this rank receives into |
# | `scatter_list` | on the root, one tensor for each rank; elsewhere None |
# | `src` | the root: its rank in the whole job; 0 unless you name one |
# | `group` | the ranks that take part; None is all of them |
# | `async_op` | True: return a [`Work`](../docs/glossary.md#work) at once |
# | `group_src` | the root's rank in the group, in place of `src` |
#
# `src` names the root. The root passes the list of n pieces, its own among them, and every other
# rank passes `None`. Every rank, the root too, also passes a tensor `x`, into which it receives its
# piece. `x` starts as [-1, -1], so you see that both numbers arrive.


# %%
def scatter(rank, world_size, device):
    root = world_size - 1
    x = torch.full((2,), -1, device=device)
    pieces = None
    if rank == root:
        pieces = [torch.tensor([10 * r + 1, 10 * r + 2], device=device) for r in range(world_size)]
    dist.scatter(x, pieces, src=root)
    # proof: and a scatter leaves the root's pieces alone
    expected = [torch.tensor([10 * r + 1, 10 * r + 2]) for r in range(world_size)]
    check(x, expected[rank], "scatter")
    check(pieces, expected if rank == root else None, "the root's pieces after scatter")
    return {"pieces": pieces, "x": x}


# %%
if __name__ == "__main__":
    run(scatter)

# %% [markdown]
# Four ranks print this:
#
# | rank | pieces | x |
# |---|---|---|
# | 0 | - | [1, 2] |
# | 1 | - | [11, 12] |
# | 2 | - | [21, 22] |
# | 3 | [[1, 2], [11, 12], [21, 22], [31, 32]] | [31, 32] |
#
# The tens digit of each number is the rank that the piece is for. In the picture, all pieces have
# the colour of rank 3, the root, because all of them come from it.

# %% [markdown]
# ### Nine rows for four ranks
#
# All pieces must have the same shape, but nine rows do not divide by four. So the root scatters
# twice: first the number of rows that each rank gets, and then the rows, with all pieces
# [padded](../docs/glossary.md#padding) to the length of the longest. Each rank cuts off its
# padding. The root cuts the rows with `tensor_split`, because `chunk` may return fewer than n
# pieces.

# %% [markdown]
# **Predict first.** The longest piece has three rows. How many rows of padding do the four ranks
# receive together?


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


# %%
if __name__ == "__main__":
    run(scatter_uneven_rows, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Three: the pieces have 3, 2, 2 and 2 rows, so each of the three short ones gets a row of -1.
#
# </details>

# %% [markdown]
# ### The share in memory
#
# What if the root does broadcast the whole, and each rank cuts out its share? Every rank then
# receives four times as much, but only for a moment, it seems, because once the share is cut out,
# the rank can delete the whole. The next step gets the share in both ways. It has 1024 numbers of 4
# bytes, which are 4096 bytes.

# %% [markdown]
# **Predict first.** After `del whole`, rank 3 has only `cut_out`, its share of 4096 bytes. How many
# bytes of memory does it keep for that?


# %%
def share_in_memory(rank, world_size, device):
    root, count, pieces = world_size - 1, 1024 * world_size, None
    whole = torch.full((count,), -1.0, device=device)
    if rank == root:
        whole = torch.arange(1.0, count + 1, device=device)
        pieces = list(whole.chunk(world_size))
    scattered = torch.full((1024,), -1.0, device=device)
    dist.scatter(scattered, pieces, src=root)

    dist.broadcast(whole, src=root)
    room = whole.nbytes
    cut_out = whole[1024 * rank : 1024 * (rank + 1)]
    del whole
    # proof
    expected = torch.arange(1024 * rank + 1.0, 1024 * (rank + 1) + 1)
    check([scattered, cut_out], [expected] * 2, "scatter, broadcast")
    check(room, 4096 * world_size, "room for a broadcast: the whole on every rank")
    kept = [share.untyped_storage().nbytes() for share in (scattered, cut_out)]
    check(kept, [4096, 4096 * world_size], "bytes that stay: of the scattered share, of the slice")
    return {"bytes, scattered": kept[0], "bytes, cut out": kept[1]}


# %%
if __name__ == "__main__":
    run(share_in_memory, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 16384, which is the whole. A slice is a [view](../docs/glossary.md#view), and as long as it
# exists, the whole tensor stays in memory: `del` deletes only the name. For the share that came by
# `scatter`, rank 3 keeps 4096 bytes.
#
# You may read that with `broadcast`, too, a rank needs room for its own share only. It needs room
# for the whole, because that is what the root sends.
#
# </details>

# %%
STEPS = [scatter, scatter_uneven_rows, share_in_memory]

# %% [markdown]
# ## The cost
#
# S is the size of the whole in bytes. The root sends (n - 1) / n * S bytes, all of them over its
# own [link](../docs/glossary.md#link), so this link limits the speed. Every other rank receives S /
# n bytes and needs no more memory than that, but the root also holds the whole.
#
# Measured on gloo, four ranks on two cores (`collectives bench bus scatter -n 4 -b 4KiB -e 16MiB -f
# 4096`): 16 MiB take 4.3 ms, and a `broadcast` of 16 MiB takes 4.2 times as long, 18 ms. With many
# ranks and small pieces, a [tree](../notebooks/algorithms/tree.ipynb) saves the root most of its
# messages.

# %% [markdown]
# ## Pitfalls
#
# - As in `gather`, only the root passes the list, and it must be a `list` of n tensors. The tuple
#   that `chunk` returns raises a TypeError, and it may be too short as well, because `chunk(4)`
#   cuts nine rows into three pieces.
# - `torch.arange(4)` is int64 and `torch.empty(4)` is float32, but `scatter` converts nothing, and
#   only the root compares dtypes. On gloo, int64 pieces [kill a
#   rank](../notebooks/mistakes/buffers.ipynb) whose output is float32 of the same length, because
#   the message has twice the bytes of the output. With dtypes of the same size the rank gets [other
#   numbers, and no error](../notebooks/mistakes/arguments.ipynb).
# - On the root, do not use one of the pieces as the output, because the root's own piece overwrites
#   it.
# - Without `src`, the root is rank 0.

# %% [markdown]
# ## On GPUs
#
# - NCCL 2.7 and later can express a scatter as n sends of the root in one batch ([NCCL on
#   point-to-point
#   communication](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/p2p.html)).
# - `scatter_object_list` pickles on the CPU, so use `scatter` for tensors
#   (`torch/distributed/distributed_c10d.py`: "inefficient as it incurs GPU -> CPU transfer since
#   tensors would be pickled").

# %% [markdown]
# ## Where it is used
#
# One rank reads a batch and hands each rank its share; a parameter server hands each worker its
# part of the parameters. `distribute_tensor` of [DTensor](../docs/glossary.md#dtensor) scatters a
# tensor that is to be sharded, and `torch.distributed.checkpoint` hands each rank its part of the
# plan with `scatter_object_list`.

# %% [markdown]
# ## Change and try
#
# Make one change, run its cell and the next one, and undo it.
#
# 1. In `scatter_uneven_rows`, change `tensor_split(world_size)` to `chunk(world_size)`. Both cut
#    nine rows for four ranks. What does rank 3 get?
#
#    <details><summary>Answer</summary>
#
#    Nothing, because the run ends with `rank 0 raised RuntimeError: ProcessGroupGloo::scatter:
#    Incorrect input list size 3. Input list size should be 4, same as size of the process group.`
#    `chunk` returns three pieces of three rows, so none is left for rank 3, which would wait until
#    the time limit.
#
#    </details>
#
# 2. In `share_in_memory`, change `whole[1024 * rank : 1024 * (rank + 1)]` to `whole[1024 * rank :
#    1024 * (rank + 1)].clone()`. How many bytes does each rank keep now?
#
#    <details><summary>Answer</summary>
#
#    You get `rank 0/4: got [4096, 4096], should be [4096, 16384] [bytes that stay: of the scattered
#    share, of the slice, gloo]`: as many for the clone as for the scattered share, because a clone
#    has memory of its own.
#
#    </details>

# %% [markdown]
# ## Write it yourself
#
# In your folder of [exercises](../README.md#exercises):
#
# ```sh
# collectives practice squares_on_all_ranks
# collectives practice scatter_from_sends
# ```

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
#
# Here one rank has something for every rank. Next lesson:
# [all_to_all](../notebooks/all_to_all.ipynb), in which every rank has something for every rank, so
# that one call does the work of n scatters.
