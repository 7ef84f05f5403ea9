# %% [markdown]
"""
# scatter

One rank, the root (`src`), has one tensor for each rank, and rank r ends up with number r.

A **rank** is one process of the job, and its number, from 0; the **world size**, n below, is how many there are. The **root** is
the one rank with a part of its own. A **group** is some of the ranks, for calls among themselves. The **backend** is the library
that moves the bytes: gloo (CPU), NCCL (GPU) or MPI.

You will see a list of pieces on the root and `None` elsewhere, a scatter from every root, what it saves against broadcasting the
whole, pieces of unequal length, and the dtype trap.

    python lessons/scatter.py
    torchrun --nproc-per-node 4 lessons/scatter.py

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
# Four ranks. The root is the last rank: it has the piece `[10 * r, 10 * r + 1]` for rank r, and everyone has room for one piece.
#
# | rank | pieces | before | after |
# |---|---|---|---|
# | 0 | - | [-1, -1] | [0, 1] |
# | 1 | - | [-1, -1] | [10, 11] |
# | 2 | - | [-1, -1] | [20, 21] |
# | 3 | [[0, 1], [10, 11], [20, 21], [30, 31]] | [-1, -1] | [30, 31] |

# %% [markdown]
# ## The code
#
# Every rank brings a tensor that receives. The root adds the list of n pieces, its own among them; every other rank passes `None`.


# %%
def scatter(rank, world_size, device):
    x = torch.full((2,), -1, device=device)
    before = x.clone()
    root = world_size - 1
    pieces = [torch.tensor([10 * r, 10 * r + 1], device=device) for r in range(world_size)] if rank == root else None

    dist.scatter(x, pieces, src=root)

    check(x, torch.tensor([10 * rank, 10 * rank + 1]), "scatter")
    if rank == root:
        check(pieces, [torch.tensor([10 * r, 10 * r + 1]) for r in range(world_size)], "the root's pieces after scatter")
    return {"pieces": pieces, "before": before, "after": x}


# %%
if __name__ == "__main__":
    run(scatter)

# %% [markdown]
# ### Every root once
#
# Rank r, as root, has the number `10 * r + q` for rank q. After n scatters rank q holds everybody's number for q. Together they do
# what a single `all_to_all` does.


# %%
def scatter_from_every_root(rank, world_size, device):
    own = 10 * rank + torch.arange(world_size, device=device)
    received = torch.full((world_size,), -1, device=device)
    for root in range(world_size):
        pieces = list(own.split(1)) if rank == root else None  # views: nothing is copied
        dist.scatter(received[root : root + 1], pieces, src=root)

    check(received, 10 * torch.arange(world_size) + rank, "scatter from every root")
    check(own, 10 * rank + torch.arange(world_size), "own pieces after scatter")
    return {"own": own, "received": received}


# %%
if __name__ == "__main__":
    run(scatter_from_every_root)

# %% [markdown]
# ### Memory: scatter against broadcast and slice
#
# A piece has 1024 numbers of 4 bytes: 4096 bytes, and the whole for four ranks is 16384. A rank can have its piece by `scatter`, or
# it can take part in a `broadcast` of the whole and keep `whole[rank * length : (rank + 1) * length]`.


# %%
def memory_against_broadcast(rank, world_size, device):
    root, length = world_size - 1, 1024
    whole = torch.arange(float(world_size * length), device=device) if rank == root else None
    piece = torch.full((length,), -1.0, device=device)
    dist.scatter(piece, list(whole.chunk(world_size)) if rank == root else None, src=root)
    scattered = piece.untyped_storage().nbytes() + (whole.untyped_storage().nbytes() if rank == root else 0)

    if rank != root:
        whole = torch.full((world_size * length,), -1.0, device=device)
    dist.broadcast(whole, src=root)
    cut = whole[rank * length : (rank + 1) * length]

    expected = torch.arange(float(rank * length), float((rank + 1) * length))
    check(piece, expected, "scatter")
    check(cut, expected, "broadcast and slice")
    return {"bytes, scatter": scattered, "bytes, broadcast and slice": cut.untyped_storage().nbytes()}


# %% [markdown]
# **Predict first.** Both ways a rank ends up with the same 1024 numbers. How many bytes does rank 0 still hold after each of them,
# when nothing but the piece is in use? And the root?

# %%
if __name__ == "__main__":
    run(memory_against_broadcast)

# %% [markdown]
# **Why.** A slice is a view, and as long as it lives the whole does (`clone()` the slice to let go). With `scatter` a rank needs
# room for its own piece, and only the root has the whole and its piece, 20480 bytes. For all four ranks together that is 32768
# bytes against 65536.

# %% [markdown]
# ### Pieces of unequal length
#
# All pieces of a scatter must have the same shape. Where the rows do not divide evenly, pad each piece to the longest, tell each
# rank its length, and cut. `tensor_split` always gives n pieces; `chunk` may give fewer.


# %%
def scatter_unequal_pieces(rank, world_size, device):
    root, rows = world_size - 1, 2 * world_size + 1  # one row too many
    longest = -(-rows // world_size)  # rounded up
    pieces = lengths = None
    if rank == root:
        shards = torch.arange(rows, device=device).tensor_split(world_size)
        lengths = [torch.tensor([len(shard)], device=device) for shard in shards]
        pieces = [torch.nn.functional.pad(shard, (0, longest - len(shard)), value=-1) for shard in shards]

    length = torch.full((1,), -1, device=device)
    padded = torch.full((longest,), -2, device=device)
    dist.scatter(length, lengths, src=root)
    dist.scatter(padded, pieces, src=root)
    shard = padded[: length.item()]

    start, stop = (0, 3) if rank == 0 else (2 * rank + 1, 2 * rank + 3)  # rank 0 has the row too many
    check(length, torch.tensor([stop - start]), "scatter(lengths)")
    check(shard, torch.arange(start, stop), "scatter(padded pieces)")
    check(padded[stop - start :], torch.full((longest - (stop - start),), -1), "scatter(padding)")
    return {"length": length, "padded": padded, "piece": shard}


# %%
if __name__ == "__main__":
    run(scatter_unequal_pieces)

# %% [markdown]
# ### The dtype trap
#
# `torch.arange(4)` is int64, `torch.empty(2)` is float32. Here the root alone makes the mistake, so that nobody waits for it; then
# all agree on float32.


# %%
def same_dtype_everywhere(rank, world_size, device):
    root, refused, pieces = world_size - 1, None, None
    if rank == root:
        pieces = list(torch.arange(2 * world_size, device=device).chunk(world_size))
        wrong = torch.full((2,), -1.0, device=device)
        try:
            dist.scatter(wrong, pieces, src=root)  # int64 into float32
        except ValueError:
            refused = "refused"
        check(refused, "refused", "scatter(int64 into float32) on the root")
        check(wrong, torch.full((2,), -1.0), "the tensor after a refused scatter")
        pieces = [piece.to(torch.float32) for piece in pieces]

    x = torch.full((2,), -1, dtype=torch.float32, device=device)
    dist.scatter(x, pieces, src=root)

    check(x, torch.tensor([2.0 * rank, 2.0 * rank + 1]), "scatter(float32)")
    return {"int64 into float32": refused, "float32 into float32": x}


# %% [markdown]
# **Predict first.** The root scatters int64 pieces and itself receives into float32. Are they converted, refused, or copied bit by
# bit?

# %%
if __name__ == "__main__":
    run(same_dtype_everywhere)

# %% [markdown]
# **Why.** `scatter` converts nothing. The root sees both dtypes and refuses. The other ranks see only their own tensor: nobody
# compares it with what is sent. Convert *before* the call, on the root, and name the dtype where the tensor is made.

# %%
STEPS = [scatter, scatter_from_every_root, memory_against_broadcast, scatter_unequal_pieces, same_dtype_everywhere]

# %% [markdown]
# ## The proof
#
# Every rank compares every element with the piece of its own number, and the pieces tell their root and their receiver: pieces in
# another order, or another root, show. Buffers start with what they must not end with. The root proves that its pieces are
# unchanged.

# %% [markdown]
# ## The cost
#
# For S bytes in the whole on n ranks: the root sends (n - 1) / n * S bytes, and each other rank receives S / n bytes. All of that
# leaves through the root's link, which is what limits it. A broadcast would bring S bytes to every rank. In memory: S / n bytes on
# each rank, and S more on the root.
#
# Bus-bandwidth factor: `(n - 1) / n`. (Algorithm bandwidth is S / time, with S the *whole*; the root's own part does not travel.)

# %% [markdown]
# ## Pitfalls
#
# - A list on a rank that is not the root, or none on the root, is a ValueError on that rank alone. Those who need it go on waiting.
# - The list must be a `list` of n tensors: the tuple that `chunk` gives is a TypeError. And `chunk(4)` cuts 5 rows in 3 pieces.
# - A wrong dtype on a rank other than the root is not seen in time. On gloo int64 pieces for ranks that wait with as many float32
#   kill the waiting processes, as the message is longer than the tensor; int32 pieces arrive as the float32 numbers with the same
#   bits, so that a 1 is read as 1.4e-45, in silence. `TORCH_DISTRIBUTED_DEBUG=DETAIL` reports both before anything is sent.
# - Do not receive into a piece of the whole: with `x = pieces[0]` on root 3, the root's own piece overwrites piece 0.
# - Left out, `src` is rank 0. It is a global rank, also with `group=`; `group_src` counts within the group.

# %% [markdown]
# ## Where it is used
#
# One rank reads a file, or a batch, and hands each rank its share. `distribute_tensor` of DTensor scatters from one rank where a
# tensor is to be sharded (and broadcasts where it is to be replicated). `torch.distributed.checkpoint` hands each rank its part of
# the plan with `scatter_object_list`.

# %% [markdown]
# ## Change and try
#
# Each of these is one change in one cell: make it, run that cell and the one after it, and undo it.
#
# 1. In `scatter`, change `src=root` to `src=0`. Rank 0 is asked for pieces that it does not have, and rank 3 brings some that
#    nobody wants. Who complains? It says `scatter_list`: each of the two, on its own; the others would wait.
# 2. In `scatter_unequal_pieces`, change `tensor_split(world_size)` to `chunk(world_size)`. Both cut nine rows for four ranks. It
#    says `rank 3 raised`: `chunk` makes pieces of three, and there are only three of them.
# 3. In `memory_against_broadcast`, change `cut = whole[rank * length : (rank + 1) * length]` to
#    `cut = whole[rank * length : (rank + 1) * length].clone()`. What does rank 0 still hold? It says `0 4096 4096`.

# %% [markdown]
# ## Read on
#
# In PyTorch's documentation:
#
# - [`scatter`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.scatter)
# - [`broadcast`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.broadcast)
#
# Next lesson: [reduce_scatter](../notebooks/reduce_scatter.ipynb), in which all ranks hand out pieces, and they are summed on the
# way.
