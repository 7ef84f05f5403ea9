# %% [markdown]
"""
# new_group

Every rank calls it with the same list of ranks, and those in the list get a group in which every collective works on its own.

A **rank** is one process of the job, and its number, from 0; the **world size**, n below, is how many there are. A **group** is
some of the ranks, for calls among themselves. The **root** is the one rank with a part of its own. The **backend** is the library
that moves the bytes: gloo (CPU), NCCL (GPU) or MPI.

You will see two halves of the world that work at the same time and do not wait for each other, the two ways to number a rank, and a
grid in which every rank belongs to a row and to a column.

    python lessons/new_group.py
    torchrun --nproc-per-node 4 lessons/new_group.py

To run it, clone the repository and type `make tour`; or, where you already have torch, `pip install -e '.[notebooks]'`.
"""

# %%
import math

from collectives import check
from collectives.lesson import needs, run
import torch
import torch.distributed as dist

# %% [markdown]
# ## Worked numbers
#
# Four ranks, two groups. Rank r starts with `[10 ** r]`, so that the digits of a sum name its ranks: the lower half ends with 11,
# the upper half with 1100. The columns "lower" and "upper" are the rank's number in that group, -1 outside it.
#
# | rank | lower | upper | before | after |
# |---|---|---|---|---|
# | 0 | 0 | -1 | [1] | [11] |
# | 1 | 1 | -1 | [10] | [11] |
# | 2 | -1 | 0 | [100] | [1100] |
# | 3 | -1 | 1 | [1000] | [1100] |

# %% [markdown]
# ## The code
#
# Every rank creates *both* groups, also the one that it is not in. There it gets `dist.GroupMember.NON_GROUP_MEMBER`, with which it
# can do nothing. With an odd number of ranks the upper half is the larger one.


# %%
def halves(world_size):
    return list(range(world_size // 2)), list(range(world_size // 2, world_size))


@needs(ranks=2)
def new_group(rank, world_size, device):
    lower_ranks, upper_ranks = halves(world_size)
    lower = dist.new_group(lower_ranks)  # subtle: everyone calls, in the same order; see below
    upper = dist.new_group(upper_ranks)
    ranks, group = (lower_ranks, lower) if rank in lower_ranks else (upper_ranks, upper)

    x = torch.tensor([10**rank], device=device)
    before = x.clone()
    dist.all_reduce(x, op=dist.ReduceOp.SUM, group=group)

    check(x, torch.tensor([sum(10**r for r in ranks)]), "all_reduce(SUM, group=one half)")
    numbers = [dist.get_rank(lower), dist.get_rank(upper)]
    check(numbers, [ranks.index(rank), -1] if rank in lower_ranks else [-1, ranks.index(rank)], "get_rank(group)")
    check(dist.get_world_size(group), len(ranks), "get_world_size(group)")
    dist.destroy_process_group(group)
    return {"lower": numbers[0], "upper": numbers[1], "before": before, "after": x}


# %%
if __name__ == "__main__":
    run(new_group)

# %% [markdown]
# ### Why everyone must call it
#
# Ranks do not compare what they create. Each counts its calls, and the count gives the group its name, under which its members look
# for each other in the store. A rank that leaves out a call counts differently from then on. Run on gloo:
#
# - Three ranks; only 0 and 1 call `new_group([0, 1])`. That group works. The next one, of all three, fails at the timeout: they
#   look for each other under different names. So a mistake can lie far from where it shows.
# - Four ranks; each half creates its own group only. Both groups have the same name, and what happens depends on who comes first:
#   right sums, wrong sums, a broken connection, or ranks that wait. We have seen each of these.
# - Four ranks; all create both halves, but odd ranks in the other order. No error at all: rank 0 adds up with rank 3, rank 1 with
#   rank 2, and every sum is wrong.
#
# Where really only the members can call, `use_local_synchronization=True` makes the name from the list of ranks instead.

# %% [markdown]
# ### Each half goes its own way
#
# The halves may call different collectives, and different numbers of them. Here the upper half sums twice, and then its last rank
# sends a message to rank 0. The lower half gathers; but rank 0 first waits for that message.


# %%
@needs(ranks=2)
def halves_do_not_wait(rank, world_size, device):
    lower_ranks, upper_ranks = halves(world_size)
    lower, upper = dist.new_group(lower_ranks), dist.new_group(upper_ranks)
    x = torch.tensor([rank], device=device)
    before = x.clone()

    if rank in upper_ranks:
        dist.all_reduce(x, op=dist.ReduceOp.SUM, group=upper)
        dist.all_reduce(x, op=dist.ReduceOp.SUM, group=upper)  # sums the sums: times the size of the group
        if rank == upper_ranks[-1]:
            dist.send(x, dst=0)  # without group=: among all ranks
        check(x, torch.tensor([len(upper_ranks) * sum(upper_ranks)]), "all_reduce(SUM, group=upper), twice")
        dist.destroy_process_group(upper)
        return {"before": before, "after": x}

    word = torch.full_like(x, -1)
    if rank == 0:
        dist.recv(word, src=world_size - 1)
        check(word, torch.tensor([len(upper_ranks) * sum(upper_ranks)]), "recv")
    pieces = [torch.full_like(x, -1) for _ in lower_ranks]
    dist.all_gather(pieces, x, group=lower)
    check(pieces, [torch.tensor([r]) for r in lower_ranks], "all_gather(group=lower)")
    dist.destroy_process_group(lower)
    return {"before": before, "after": pieces, "heard first": word if rank == 0 else None}


# %% [markdown]
# **Predict first.** Rank 0 stays away from its half until the upper half is done; rank 1 is already there. Does this end, and which
# numbers do the ranks of the upper half hold?

# %%
if __name__ == "__main__":
    run(halves_do_not_wait)

# %% [markdown]
# **Why.** If the groups needed each other, it would never end. The upper half holds the sum 2 + 3 = 5, and then 5 + 5 = 10: every
# rank brought the sum to the second one.

# %% [markdown]
# ### Two numbers for one rank
#
# Every member of a group has two numbers: its *global* rank, and its rank within the group. `src` and `dst` are one of them,
# `group_src` and `group_dst` the other. Here every member is the root once, named in both ways. In the end every rank calls
# `broadcast(src=0)` in its own group.


# %%
@needs(ranks=2)
def global_and_group_ranks(rank, world_size, device):
    groups = [(ranks, dist.new_group(ranks)) for ranks in halves(world_size)]
    ranks, group = next((ranks, group) for ranks, group in groups if rank in ranks)

    for position, root in enumerate(ranks):
        check(dist.get_group_rank(group, root), position, "get_group_rank")
        check(dist.get_global_rank(group, position), root, "get_global_rank")
        by_src, by_group_src = (torch.tensor([10 + rank], device=device) for _ in range(2))
        dist.broadcast(by_src, src=root, group=group)
        dist.broadcast(by_group_src, group_src=position, group=group)
        check(by_src, torch.tensor([10 + root]), f"broadcast(src={root})")
        check(by_group_src, torch.tensor([10 + root]), f"broadcast(group_src={position})")

    x = torch.tensor([10 + rank], device=device)
    try:
        dist.broadcast(x, src=0, group=group)
    except ValueError:  # rank 0 is no member; nothing was sent
        check(rank in halves(world_size)[1], True, "broadcast(src=0) refused")
    check(x, torch.tensor([10 if 0 in ranks else 10 + rank]), "broadcast(src=0)")
    own = dist.get_group_rank(group, rank)
    dist.destroy_process_group(group)
    return {"group": ranks, "group rank": own, "last root, src": by_src, "last root, group_src": by_group_src, "src=0": x}


# %% [markdown]
# **Predict first.** The upper half is the group of ranks 2 and 3. What does `broadcast(x, src=0, group=group)` do there: does it
# send rank 2's number, the first of the group; rank 0's, the first of the world; or is it refused?

# %%
if __name__ == "__main__":
    run(global_and_group_ranks)

# %% [markdown]
# **Why.** `src` and `dst` are *global* ranks, also with `group=`. Rank 0 is not in the upper half, so `src=0` is refused there, and
# every rank keeps its number. It is a common mistake, made by thinking of the group's first rank.

# %% [markdown]
# ### Rows and columns
#
# Ranks in a grid, numbered row by row: each is in the group of its row and in the group of its column. A sum along the row and then
# along the column is the sum over the grid. It has as many rows as the square root of n, rounded down, and as many columns as fit:
# 2 x 2 for 4, 2 x 3 for 6. With 5, one rank is left over: it has no row and no column, but it creates the groups like everyone
# else.


# %%
@needs(ranks=4)
def grid(rank, world_size, device):
    rows = math.isqrt(world_size)
    columns = world_size // rows
    row_groups = [dist.new_group([row * columns + column for column in range(columns)]) for row in range(rows)]
    column_groups = [dist.new_group([row * columns + column for row in range(rows)]) for column in range(columns)]
    along_row, along_column = (torch.tensor([10**rank], device=device) for _ in range(2))
    if rank >= rows * columns:  # left over
        check([dist.get_rank(group) for group in row_groups + column_groups], [-1] * (rows + columns), "get_rank(group)")
        return {"row, column": None}

    row, column = divmod(rank, columns)
    dist.all_reduce(along_row, group=row_groups[row])
    dist.all_reduce(along_column, group=column_groups[column])
    both = along_row.clone()
    dist.all_reduce(both, group=column_groups[column])

    check(along_row, torch.tensor([sum(10 ** (row * columns + c) for c in range(columns))]), "all_reduce(SUM, group=row)")
    check(along_column, torch.tensor([sum(10 ** (r * columns + column) for r in range(rows))]), "all_reduce(SUM, group=column)")
    check(both, torch.tensor([(10 ** (rows * columns) - 1) // 9]), "all_reduce(SUM) along row, then along column")
    dist.destroy_process_group(row_groups[row])
    dist.destroy_process_group(column_groups[column])
    return {"row, column": [row, column], "along row": along_row, "along column": along_column, "both": both}


# %% [markdown]
# **Predict first.** The grid of four ranks is 0 1 over 2 3, and the digits of a sum name its ranks: rank r brings `10 ** r`. Which
# sum does rank 2 get along its row, and which along its column?

# %%
if __name__ == "__main__":
    run(grid)

# %% [markdown]
# **Why.** Rank 2 shares its row with rank 3, 1100, and its column with rank 0, 101. Every rank is in two groups, and calls the
# collectives of the one without those of the other.

# %%
STEPS = [new_group, halves_do_not_wait, global_and_group_ranks, grid]

# %% [markdown]
# ## The proof
#
# Powers of ten name the ranks in a sum: 1100 is ranks 2 and 3, and nothing else. A collective that ignored its group would sum all
# four, `1111`. Each member is the root of a broadcast once, so a root that is ignored, or counted in the wrong numbering, shows. In
# the grid the three sums differ: row, column, and both.

# %% [markdown]
# ## The cost
#
# Creating a group costs messages to the store, and connections: on gloo each member opens one to every other member, at once; NCCL
# builds a communicator, with buffers on the GPU, usually at the first collective. So create groups once, at the start, and keep
# them. Afterwards a collective costs what it costs among as many ranks as the group has: its factor counts with the group's size
# for n.
#
# Bus-bandwidth factor: none, no data moves. (Groups do not make a link faster: two halves that work at the same time share what
# lies between them.)

# %% [markdown]
# ## Pitfalls
#
# - Ranks of a group are numbered by rising global rank, in whatever order the list names them: `new_group([3, 1, 0])` has rank 1 in
#   the middle. In 2.13 `sort_ranks=False` keeps the order of the list.
# - `group=None` is not "no group": it is the world. A rank outside keeps its `NON_GROUP_MEMBER`; a collective with it warns and
#   does nothing.
# - A group rank given as `src` may happen to be a member, too: in the group [1, 2] `src=1` is the first rank, not the second. No
#   error.
# - `new_group([])` fails; leave empty groups out, on every rank.
# - On NCCL, collectives of two groups that run at the same time on one rank can block each other: issue them in the same order on
#   every rank, and wait for one before the next.
# - Destroy a group after its results were read, not before: on CUDA the call may have returned before the work was done.

# %% [markdown]
# ## Where it is used
#
# Tensor, pipeline and data parallelism are rows and columns of a grid; `init_device_mesh` builds such grids, with names. Hybrid
# FSDP shards along one side and replicates along the other. In RLHF, trainers and generators are two groups. Evaluation on some
# ranks goes on while others train.

# %% [markdown]
# ## Change and try
#
# Each of these is one change in one cell: make it, run that cell and the one after it, and undo it.
#
# 1. In `new_group`, change `group=group)` to `group=None)`. No group? It says `got [1111]`: None is the world.
# 2. In `new_group`, change `upper_ranks = halves(world_size)` to `upper_ranks = halves(world_size)[:: 1 if rank % 2 == 0 else -1]`.
#    Odd ranks now create the same two groups in the other order. Read the digits of what comes out. It says
#    `[all_reduce(SUM, group=one half), int64[1], gloo]`: rank 0 adds up with rank 3, to 1001, and rank 1 with rank 2, to 110.
#    Nobody but the proof complains.
# 3. In `global_and_group_ranks`, change `src=root, group=group)` to `group_src=root, group=group)`. In the lower half nothing
#    changes, as both numbers are the same there. In the upper half there is no member number 2. It says `invalid root rank: 2`.

# %% [markdown]
# ## Read on
#
# In PyTorch's documentation:
#
# - [`new_group`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.new_group)
# - [`all_reduce`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_reduce)
# - [`get_rank`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.get_rank)
# - [`get_world_size`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.get_world_size)
# - [`get_group_rank`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.get_group_rank)
# - [`get_global_rank`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.get_global_rank)
# - [`broadcast`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.broadcast)
# - [`all_gather`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_gather)
# - [`send`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.send)
# - [`recv`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.recv)
#
# This was the last lesson. The [README](../README.md) says what else there is: your own functions on ranks, and what works on which
# backend.
