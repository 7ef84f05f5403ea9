# %% [markdown]
"""
# new_group

In large trainings a GPU talks to some GPUs about the pieces of a layer, and to others about
gradients, and these are different sets of ranks. `new_group` makes a group of some ranks, in which
every collective works as if there were no others.

You will see two halves of the world that sum on their own; the two ways to number a rank; a grid in
which every rank belongs to a row and to a column; and the same grid made in one call, with names.

    python lessons/new_group.py
    torchrun --nproc-per-node 4 lessons/new_group.py
"""

# %%
from collectives import check
from collectives.lesson import needs, run
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

# %% [markdown]
# ## The call
#
# Every rank makes *both* calls, even for the group that it does not belong to. For that group it
# gets a placeholder that it cannot use, `dist.GroupMember.NON_GROUP_MEMBER`. With an odd number of
# ranks the upper half is the larger one.


# %%
@needs(ranks=2)
def new_group(rank, world_size, device):
    half = world_size // 2
    lower = dist.new_group(list(range(half)))
    upper = dist.new_group(list(range(half, world_size)))
    group = lower if rank < half else upper
    x = torch.tensor([10**rank], device=device)
    dist.all_reduce(x, op=dist.ReduceOp.SUM, group=group)
    # proof
    ranks = range(half) if rank < half else range(half, world_size)
    check(x, torch.tensor([sum(10**r for r in ranks)]), "all_reduce(SUM, group=one half)")
    return {"own": 10**rank, "sum": x}


# %%
if __name__ == "__main__":
    run(new_group)

# %% [markdown]
# Four ranks print this:
#
# | rank | own | sum |
# |---|---|---|
# | 0 | 1 | [11] |
# | 1 | 10 | [11] |
# | 2 | 100 | [1100] |
# | 3 | 1000 | [1100] |
#
# The digits of a sum name its ranks: 1100 is ranks 2 and 3, and nobody else. In the picture the
# dotted lines join the ranks that wait for each other: no line leads from one half to the other.

# %% [markdown]
# ### Why every rank must call it
#
# Ranks do not compare what they create. Each rank counts its calls, and the count gives the group
# its name, under which its members look for each other. So a rank that [leaves out a
# call](../notebooks/mistakes/groups.ipynb) has the wrong names from then on, and the failure may
# show much later, in another group. Groups that some ranks create [in another
# order](../notebooks/mistakes/groups.ipynb) get mixed up in the same way.
#
# With `use_local_synchronization=True` only the members call `new_group`, because the name then
# comes from the list of ranks. That is faster in a large job with many small groups. But the
# docstring of torch 2.13 warns of two things: it does not work with MPI, and where ranks create
# several overlapping groups, it can deadlock unless all ranks create them in one order. Ranks
# outside the group do not wait for it, either.

# %% [markdown]
# ### Two numbers for one rank
#
# A member of a group has two numbers: its rank in the world (the *global* rank), and its rank in
# the group, which is -1 for a rank outside it. `src` and `dst` are global ranks, also with
# `group=`. `group_src` and `group_dst` count within the group. Here the group is everyone but rank
# 0.


# %%
@needs(ranks=3)
def global_and_group_ranks(rank, world_size, device):
    workers = dist.new_group(list(range(1, world_size)))
    x, y = (torch.tensor([10 * rank], device=device) for _ in range(2))
    if rank > 0:
        dist.broadcast(x, src=1, group=workers)
        dist.broadcast(y, group_src=1, group=workers)
    # proof
    expected = [10, 20] if rank > 0 else [0, 0]
    check([x.item(), y.item()], expected, "broadcast(src=1), broadcast(group_src=1)")
    number = dist.get_rank(workers)
    check(number, rank - 1, "get_rank(group)")
    if rank > 0:
        check(dist.get_world_size(workers), world_size - 1, "get_world_size(group)")
        check(dist.get_global_rank(workers, number), rank, "get_global_rank")
        dist.destroy_process_group(workers)
    return {"number in the group": number, "src=1": x, "group_src=1": y}


# %% [markdown]
# **Predict first.** Each rank brings 10 times its global rank. Which number arrives by `src=1`, and
# which by `group_src=1`? Write both numbers down.

# %%
if __name__ == "__main__":
    run(global_and_group_ranks)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 10 and 20. `src=1` is rank 1 of the world, the first of this group. `group_src=1` is number 1 in
# the group, which is rank 2 of the world. People often write `src=0` and mean the group's first
# rank: here it is refused, because rank 0 is no member; in other groups it [goes
# unnoticed](../notebooks/mistakes/groups.ipynb). The picture names both roots by their global rank.
#
# </details>

# %% [markdown]
# ### Rows and columns
#
# The ranks stand in a grid of two rows, numbered row by row (an odd number of ranks makes one row).
# Each rank is in the group of its row and in the group of its column, and sums in both.


# %%
@needs(ranks=2)
def grid(rank, world_size, device):
    table = torch.arange(world_size).reshape(2 if world_size % 2 == 0 else 1, -1)
    rows = [dist.new_group(ranks) for ranks in table.tolist()]
    columns = [dist.new_group(ranks) for ranks in table.T.tolist()]
    row, column = divmod(rank, len(columns))
    along_row, along_column = (torch.tensor([10**rank], device=device) for _ in range(2))
    dist.all_reduce(along_row, group=rows[row])
    dist.all_reduce(along_column, group=columns[column])
    # proof
    check(along_row, sum(10 ** table[row]).reshape(1), "all_reduce(SUM) along the row")
    check(along_column, sum(10 ** table[:, column]).reshape(1), "all_reduce(SUM) along the column")
    dist.destroy_process_group(rows[row])
    dist.destroy_process_group(columns[column])
    return {"row, column": [row, column], "along row": along_row, "along column": along_column}


# %% [markdown]
# **Predict first.** Four ranks stand in the grid 0 1 over 2 3, and rank r brings 10 to the power of
# r. Which sum does rank 2 get along its row, and which along its column? Write both numbers down.

# %%
if __name__ == "__main__":
    run(grid)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 1100 along its row, which it shares with rank 3, and 101 along its column, which it shares with
# rank 0. The picture is the grid: find the two outlines around rank 2.
#
# </details>

# %% [markdown]
# ### The same grid in one call
#
# `init_device_mesh` makes all these groups, and names the directions. `mesh["tp"]` is the row of
# this rank, `mesh["dp"]` its column. The names are those of the usual grid: the ranks of a row hold
# the pieces of one layer (tensor parallelism), and the ranks of a column hold the same piece and
# average its gradients (data parallelism).


# %%
@needs(ranks=2)
def device_mesh(rank, world_size, device):
    rows = 2 if world_size % 2 == 0 else 1
    mesh = init_device_mesh(device.type, (rows, world_size // rows), mesh_dim_names=("dp", "tp"))
    along_tp, along_dp = (torch.tensor([10**rank], device=device) for _ in range(2))
    dist.all_reduce(along_tp, group=mesh["tp"].get_group())
    dist.all_reduce(along_dp, group=mesh["dp"].get_group())
    # proof
    table = torch.arange(world_size).reshape(rows, -1)
    row, column = divmod(rank, world_size // rows)
    check(along_tp, sum(10 ** table[row]).reshape(1), "all_reduce(SUM) along tp")
    check(along_dp, sum(10 ** table[:, column]).reshape(1), "all_reduce(SUM) along dp")
    check(mesh.get_coordinate(), (row, column), "get_coordinate")
    return {"row, column": [row, column], "along tp": along_tp, "along dp": along_dp}


# %%
if __name__ == "__main__":
    run(device_mesh)

# %% [markdown]
# The sums are those of the grid above, and so is the picture. FSDP, DTensor and
# `parallelize_module` take such a mesh as an argument.

# %%
STEPS = [new_group, global_and_group_ranks, grid, device_mesh]

# %% [markdown]
# ## The cost
#
# Creating a group costs messages to the store, and connections. On gloo each member connects to
# every other member immediately. NCCL builds a communicator, with buffers on the GPU, usually at
# the first collective (documented). So create groups once, at the start, and keep them. Afterwards
# a collective costs what it costs among as many ranks as the group has.
#
# Bus-bandwidth factor: none, no data moves. (Groups do not make a link faster: two halves that work
# at the same time share what lies between them.)

# %% [markdown]
# ## Pitfalls
#
# - `new_group` under an `if rank` is a mistake, [even while it
#   works](../notebooks/mistakes/groups.ipynb).
# - `group=None` is not "no group": it is the world. A collective with `NON_GROUP_MEMBER` warns and
#   does nothing.
# - The members are numbered by rising global rank, in whatever order the list names them: in
#   `new_group([3, 1, 0])` rank 1 is in the middle. Since torch 2.13, `sort_ranks=False` keeps the
#   order of the list.
# - `new_group([])` fails. Leave out empty groups, on every rank.
# - On NCCL, collectives of two groups that run at the same time on one rank can block each other:
#   issue them in the same order on every rank, and wait for one before the next (documented).
# - Read the results before you destroy the group: on CUDA a call may have returned before its work
#   was done (documented).

# %% [markdown]
# ## Where it is used
#
# Tensor, pipeline and data parallelism are directions of a grid. Hybrid FSDP shards along one side
# and replicates along the other. In reinforcement learning, trainers and generators are two groups.
# Evaluation on some ranks goes on while others train.

# %% [markdown]
# ## Change and try
#
# Each of these is one change in one cell. Make it, run that cell and the one after it, and undo it.
#
# 1. In `new_group`, change `group=group)` to `group=None)`. Is that a sum in no group?
#
#    <details><summary>Answer</summary>
#
#    You get `got [1111]`. None is the world.
#
#    </details>
#
# 2. In `global_and_group_ranks`, change `dist.broadcast(x, src=1, group=workers)` to
#    `dist.broadcast(x, src=0, group=workers)`. Does it mean the first of the group?
#
#    <details><summary>Answer</summary>
#
#    You get `Global rank 0 is not part of group`. It means rank 0 of the world, which is no worker.
#
#    </details>
#
# 3. In `device_mesh`, change `("dp", "tp")` to `("tp", "dp")`. The shape is the same. What do the
#    ranks sum?
#
#    <details><summary>Answer</summary>
#
#    You get `[all_reduce(SUM) along tp, int64[1], gloo]`. The first name belongs to the first
#    number of the shape, so "tp" is the column now, and nothing but the proof notices.
#
#    </details>

# %% [markdown]
# ## Write it yourself
#
# Write `hierarchical_all_reduce(x, row, column)`, where `row` and `column` are the groups of this
# rank in a grid: it leaves the sum over the whole grid in x. Only a piece of x may travel along the
# columns, where the slow links are.
#
# <details><summary>One way to write it</summary>
#
# ```python
# def hierarchical_all_reduce(x, row, column):
#     piece = x.new_empty(len(x) // dist.get_world_size(row))
#     dist.reduce_scatter_tensor(piece, x, group=row)
#     dist.all_reduce(piece, group=column)
#     dist.all_gather_into_tensor(x, piece, group=row)
#
#
# def try_hierarchical_all_reduce(rank, world_size, device):
#     table = torch.arange(world_size).reshape(2 if world_size % 2 == 0 else 1, -1)
#     rows = [dist.new_group(ranks) for ranks in table.tolist()]
#     columns = [dist.new_group(ranks) for ranks in table.T.tolist()]
#     row, column = divmod(rank, len(columns))
#     x = torch.arange(1, len(columns) + 1) * 10**rank
#     hierarchical_all_reduce(x, rows[row], columns[column])
#     ones = (10**world_size - 1) // 9
#     check(x, torch.arange(1, len(columns) + 1) * ones, "hierarchical_all_reduce")
#     return {"after": x}
# ```
#
# </details>

# %% [markdown]
# ## Read on
#
# - M. Shoeybi and others, [*Megatron-LM*](https://arxiv.org/abs/1909.08053) (2019): where tensor
#   parallelism needs its sums.
#
# In PyTorch's documentation:
#
# - [`init_device_mesh(...)`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.device_mesh.init_device_mesh)
# - [`new_group`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.new_group)
# - [`all_reduce`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_reduce)
# - [`broadcast`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.broadcast)
# - [`get_rank`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.get_rank)
# - [`get_world_size`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.get_world_size)
# - [`get_global_rank`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.get_global_rank)
# - [`reduce_scatter_tensor`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.reduce_scatter_tensor)
# - [`all_gather_into_tensor`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_gather_into_tensor)
#
# Next lesson: [barrier](../notebooks/barrier.ipynb), the call that moves no data at all.
