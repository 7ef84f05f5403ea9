# %% [markdown]
"""
# new_group: collectives among some of the ranks

`new_group` makes a group of some ranks, in which every collective works as if there were no others.

In large trainings a GPU exchanges parts of a layer with the GPUs of its machine, but averages
gradients with GPUs of other machines. A collective of all ranks can do neither. At the end of this
lesson you can cut the ranks into groups, or into the rows and columns of a grid, and you know why
groups that are created in another order make ranks wait for ever.

    python lessons/new_group.py
    torchrun --nproc-per-node 4 lessons/new_group.py
"""

# %%
from collectives import check, needs, note_calls, run
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

# %% [markdown]
# ## The call
#
# ```python
# dist.new_group(ranks=None, timeout=None, backend=None, pg_options=None,
#                use_local_synchronization=False, group_desc=None, device_id=None, sort_ranks=True)
# ```
#
# | argument | meaning |
# |---|---|
# | `ranks` | the members, by their ranks in the whole job; None is all |
# | `timeout` | the limit of its calls; None is the backend's |
# | `backend` | None is that of the whole job |
# | `pg_options` | options for the backend |
# | `use_local_synchronization` | True: only the members make the call |
# | `group_desc` | a description, for logs |
# | `device_id` | the GPU of this rank: NCCL then connects at once |
# | `sort_ranks` | False: keep the order of `ranks`; since torch 2.12 |
#
# `new_group` takes the list of its members, and it is a call of *all* ranks: every
# [rank](../docs/glossary.md#rank) makes both calls here, even for the
# [group](../docs/glossary.md#group) that it does not belong to. For that group it gets a
# placeholder, `dist.GroupMember.NON_GROUP_MEMBER`.


# %%
@needs(ranks=2)
def new_group(rank, world_size, device):
    calls = note_calls()  # what this rank calls from here on
    half = world_size // 2
    lower = dist.new_group(list(range(half)))
    upper = dist.new_group(list(range(half, world_size)))
    group = lower if rank < half else upper
    x = torch.tensor([10**rank], device=device)
    dist.all_reduce(x, op=dist.ReduceOp.SUM, group=group)
    # proof
    ranks = range(half) if rank < half else range(half, world_size)
    check(x, torch.tensor([sum(10**r for r in ranks)]), "all_reduce(SUM, group=one half)")
    expected = ["new_group", "new_group", "all_reduce"]
    check([call.name for call in calls], expected, "every rank makes both groups")
    placeholder = upper if rank < half else lower
    check(placeholder, dist.GroupMember.NON_GROUP_MEMBER, "new_group of the other half")
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
# The digits of a sum show which ranks are in it: 1100 is ranks 2 and 3. In the picture a dotted
# line joins ranks that wait for each other.

# %% [markdown]
# ### Both sums on every rank
#
# Now all ranks need the sums of both halves. The usual recipe is that each rank puts the sum of its
# half into its place in two zeros, and all ranks reduce them with `MAX`, or with `SUM`. Both have a
# catch, which the numbers -1, -10, -100, ... show. In a third try only one rank of each half puts
# its sum in.

# %% [markdown]
# **Predict first.** The sums of the halves are -11 and -1100. Which two numbers do all ranks get
# with `MAX`, and which with `SUM`?


# %%
@needs(ranks=2)
def half_sums(rank, world_size, device):
    half = world_size // 2
    groups = [dist.new_group(list(range(half))), dist.new_group(list(range(half, world_size)))]
    place = int(rank >= half)
    x = torch.tensor([-(10**rank)], device=device)
    dist.all_reduce(x, group=groups[place])
    by_max, by_sum, by_one = (torch.zeros(2, dtype=torch.int64, device=device) for _ in range(3))
    by_max[place] = by_sum[place] = x
    if rank in (0, half):
        by_one[place] = x
    dist.all_reduce(by_max, op=dist.ReduceOp.MAX)
    dist.all_reduce(by_sum)
    dist.all_reduce(by_one)
    # proof
    sums = torch.tensor(
        [-sum(10**r for r in range(half)), -sum(10**r for r in range(half, world_size))]
    )
    check(by_max, torch.zeros(2, dtype=torch.int64), "all_reduce(MAX) of two sums")
    check(by_sum, sums * torch.tensor([half, world_size - half]), "all_reduce(SUM) of two sums")
    check(by_one, sums, "all_reduce(SUM), one rank of each half")
    return {"MAX": by_max, "SUM": by_sum, "SUM of one each": by_one}


# %%
if __name__ == "__main__":
    run(half_sums, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# With `MAX`, 0 and 0, because the zero of the other half is larger than a negative sum. With `SUM`,
# -22 and -2200, because every member of a half adds its sum: not always four times, as one reads,
# but twice with four ranks, and four times with eight. Neither raises an error. You get the right
# sums if one rank of each half adds its sum, or with `all_gather`.
#
# </details>

# %% [markdown]
# ### Why every rank must make the same calls
#
# How does a rank find the other members of its group? Each rank counts its calls of `new_group`,
# and the count gives the group the name under which its members meet. Here rank 0 creates two
# groups in the other order, so its "gradients" is what the other ranks call "losses". The gradients
# are 1, 10, 100, ..., the losses 2, 20, 200, ...

# %% [markdown]
# **Predict first.** What does rank 0 get as `gradient`, in place of 1111?


# %%
@needs(ranks=2, backend="gloo")
def in_two_orders(rank, world_size, device):
    names = ["losses", "gradients"] if rank == 0 else ["gradients", "losses"]
    groups = {name: dist.new_group() for name in names}
    gradient, loss = (torch.tensor([digit * 10**rank], device=device) for digit in (1, 2))
    works = [
        dist.all_reduce(gradient, group=groups["gradients"], async_op=True),
        dist.all_reduce(loss, group=groups["losses"], async_op=True),
    ]
    for work in works:
        work.wait()
    # proof: rank 0 adds its gradient to the losses of the others, and its loss to their gradients
    ones = (10**world_size - 1) // 9
    mixed = [2 * ones - 1, ones + 1]
    check([gradient.item(), loss.item()], mixed if rank == 0 else mixed[::-1], "two orders")
    return {"gradient": gradient, "loss": loss}


# %%
if __name__ == "__main__":
    run(in_two_orders, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 2221: its own gradient, 1, and the losses of the other ranks, without an error. In the picture a
# dotted line joins its first call with their second calls. Without `async_op` no rank would come to
# its second call, so all would [wait for ever](../notebooks/mistakes/groups.ipynb).
#
# </details>
#
# A rank that leaves out a call, for example because it is no member, has other names from then on,
# and [a later group hangs](../notebooks/mistakes/groups.ipynb).
#
# With `use_local_synchronization=True` only the members call `new_group`. The name then comes from
# the list of ranks and from the number of groups that the rank is already in, so this number must
# be the same on all members, or they [wait for ever](../notebooks/mistakes/groups.ipynb). Groups
# that overlap break this rule easily: create those on all ranks.

# %% [markdown]
# ### Two numbers for one rank
#
# Once a rank is in a group, it has two numbers: its rank in the world (the *global* rank), and its
# rank in the group. A rank outside has -1 there. Because `src` and `dst` are global ranks even with
# `group=`, `group_src` and `group_dst` exist, which count within the group. Here the group is
# everyone but rank 0.

# %% [markdown]
# **Predict first.** The ranks have 1, 11, 21 and 31. Which number do the members get by `src=1`,
# and which by `group_src=1`?


# %%
@needs(ranks=3)
def global_and_group_ranks(rank, world_size, device):
    workers = dist.new_group(list(range(1, world_size)))
    x, y = (torch.tensor([10 * rank + 1], device=device) for _ in range(2))
    if rank > 0:
        dist.broadcast(x, src=1, group=workers)
        dist.broadcast(y, group_src=1, group=workers)
    # proof: the group begins with rank 1 of the world
    roots = (1, 1 + 1) if rank > 0 else (0, 0)
    expected = [10 * root + 1 for root in roots]
    check([x.item(), y.item()], expected, "broadcast(src=1), broadcast(group_src=1)")
    number = dist.get_rank(workers)
    check(number, rank - 1, "get_rank(group)")
    if rank > 0:
        check(dist.get_world_size(workers), world_size - 1, "get_world_size(group)")
        check(dist.get_global_rank(workers, number), rank, "get_global_rank")
        dist.destroy_process_group(workers)
    return {"number in the group": number, "src=1": x, "group_src=1": y}


# %%
if __name__ == "__main__":
    run(global_and_group_ranks, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 11 and 21. `src=1` is rank 1 of the world, but `group_src=1` is number 1 in the group, which is
# rank 2 of the world. `src=0` for the group's first rank is refused here, because rank 0 is no
# member; in other groups it [goes unnoticed](../notebooks/mistakes/groups.ipynb).
#
# </details>

# %% [markdown]
# ### Rows and columns
#
# A rank may be in several groups. Here the ranks form a grid of two rows, numbered row by row (an
# odd number of ranks makes one row), and each rank sums in the group of its row and in that of its
# column.

# %% [markdown]
# **Predict first.** Four ranks make the rows 0, 1 and 2, 3, and contribute 1, 10, 100 and 1000.
# Which sum does rank 2 get along its row, and which along its column?


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


# %%
if __name__ == "__main__":
    run(grid, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 1100 along its row, with rank 3, and 101 along its column, with rank 0.
#
# </details>

# %% [markdown]
# ### The same grid in one call
#
# So many calls in the right order are easily got wrong. `init_device_mesh` makes all these groups
# as a [mesh](../docs/glossary.md#mesh) whose dimensions have names. `mesh["tp"]` is the row of this
# rank, `mesh["dp"]` its column: usually the ranks of a row hold the pieces of one layer ([tensor
# parallel](../docs/glossary.md#tensor-parallel)), and those of a column average its gradients.


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
    check([mesh["dp"].get_local_rank(), mesh["tp"].get_local_rank()], [row, column], "local ranks")
    return {"dp, tp": [row, column], "sum over tp": along_tp, "sum over dp": along_dp}


# %%
if __name__ == "__main__":
    run(device_mesh)

# %% [markdown]
# The sums are those of the grid: a sum over tp stays in a row, and a sum over dp in a column.
# [FSDP](../docs/glossary.md#fsdp) and [DTensor](../docs/glossary.md#dtensor) take such a mesh as an
# argument.

# %%
STEPS = [new_group, half_sums, in_two_orders, global_and_group_ranks, grid, device_mesh]

# %% [markdown]
# ## The cost
#
# Creating a group costs messages to the [store](../docs/glossary.md#store), and connections,
# because on gloo each member connects to every other one at once. With four ranks on two cores,
# creating a group took 11 to 15 times as long as an `all_reduce` of one number, in three runs
# (`python benchmarks/lesson_costs.py`). So create groups once, at the start. And groups do not add
# bandwidth: two that work at the same time share the same links. What a grid gains:
# [hierarchical](../notebooks/algorithms/hierarchical.ipynb).

# %% [markdown]
# ## Pitfalls
#
# - `new_group` under an `if rank` is a mistake, [even while it
#   works](../notebooks/mistakes/groups.ipynb).
# - `group=None` is not "no group": it is the world. And a collective with `NON_GROUP_MEMBER` warns
#   and does nothing.
# - The members are numbered by rising global rank, so in `new_group([3, 1, 0])` rank 1 is in the
#   middle, unless `sort_ranks` is False.
# - `new_group([])` fails, so leave out empty groups, on every rank.

# %% [markdown]
# ## On GPUs
#
# - With several groups over NCCL, all ranks must start their collectives in one global order.
#   (`torch/distributed/distributed_c10d.py`: "must ensure a globally consistent execution order of
#   collectives across ranks")
# - With MPI, only `new_group` by all ranks works. (`torch/distributed/distributed_c10d.py`:
#   "use_local_synchronization doesn't work with MPI")

# %% [markdown]
# ## Where it is used
#
# Tensor, [pipeline](../docs/glossary.md#pipeline-parallel) and data parallelism are dimensions of a
# mesh. [Hybrid FSDP](../docs/glossary.md#hybrid-fsdp) shards over one dimension and replicates over
# the other.

# %% [markdown]
# ## Change and try
#
# Make one change, run its cell and the next one, and undo it.
#
# 1. In `new_group`, change `group=group)` to `group=None)`. Is that a sum in no group?
#
#    <details><summary>Answer</summary>
#
#    You get `rank 0/4: got [1111], should be [11] [all_reduce(SUM, group=one half), int64[1],
#    gloo]`, because None is the world.
#
#    </details>
#
# 2. In `device_mesh`, change `("dp", "tp")` to `("tp", "dp")`. What does rank 0 get as the sum over
#    tp?
#
#    <details><summary>Answer</summary>
#
#    You get `rank 0/4: got [101], should be [11] [all_reduce(SUM) along tp, int64[1], gloo]`. The
#    first name belongs to the first number of the shape, so "tp" is the column now.
#
#    </details>

# %% [markdown]
# ## Write it yourself
#
# In your folder of [exercises](../README.md#exercises):
#
# ```sh
# collectives practice sub_groups
# collectives practice repair_the_groups
# collectives practice all_reduce_on_a_grid
# ```

# %% [markdown]
# ## Read on
#
# - M. Shoeybi and others, [*Megatron-LM*](https://arxiv.org/abs/1909.08053) (2019): tensor
#    parallelism.
#
# In PyTorch's documentation:
#
# - [`init_device_mesh(...)`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.device_mesh.init_device_mesh)
# - [`new_group`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.new_group)
# - [`all_reduce`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_reduce)
# - [`broadcast`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.broadcast)
# - [`get_global_rank`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.get_global_rank)
# - [`reduce_scatter_single`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.reduce_scatter_single)
# - [`all_gather_single`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_gather_single)
#
# Next lesson: [weight_update](../notebooks/weight_update.ipynb), in which a trainer and the engines
# that use its weights need a group of their own.
