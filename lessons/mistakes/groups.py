# %% [markdown]
"""
# groups: process groups that not every rank creates

All ranks of the world must create every group, even the ranks that are not in it, and all in the
same order.

It is tempting to let only the members create a group, and it even works for a while. The ranks wait
later, in another line, in a call that is correct. And a rank of a group has two numbers, which are
easily confused. At the end of this lesson you can create and use groups so that none of this
happens.

Find each mistake yourself first: read "You see" and the program, and say which line is wrong. Then
open the output, the answer, and the cure below it.

    python lessons/mistakes/groups.py
    torchrun --nproc-per-node 4 lessons/mistakes/groups.py
"""

# %%
from collectives import check, cure, mistake, run
import torch
import torch.distributed as dist

# %% [markdown]
# ## Program 1: a pair, then everyone
#
# **You see.** The pair works. But later all three ranks create another group, and all three wait
# there, far away from the mistake. After 30 minutes:
#
# ```text
# RuntimeError: Wait timeout
# ```


# %%
@mistake("hangs", ranks=3)
def pair_then_everyone(rank, world_size, device):
    x, y = torch.tensor([10**rank], device=device), torch.tensor([10**rank], device=device)
    if rank > 0:
        pair = dist.new_group([1, 2])
        dist.all_reduce(x, group=pair)
    dist.barrier()
    everyone = dist.new_group()
    dist.all_reduce(y, group=everyone)
    check(
        [x, y],
        [torch.tensor([110 if rank > 0 else 1]), torch.tensor([111])],
        "all_reduce(SUM, group=...)",
    )


# %%
if __name__ == "__main__":
    run(pair_then_everyone, folded=True)

# %% [markdown]
# <details><summary>What is wrong?</summary>
#
# **Cause: only its members create the group.** Groups are numbered, and each process counts for
# itself. The second group of ranks 1 and 2 is the first group of rank 0, so they look for each
# other under different names. That is why all ranks must make the call
# (`torch/distributed/distributed_c10d.py`: "even if they are not going to be members of the
# group").
#
# **Cure.** Let every rank create every group, and use only those that it is in.
#
# **Early.** `new_group` under an `if rank` is a mistake, even while it works, so create all groups
# in one place, right after start-up.
#
# </details>


# %%
@cure(ranks=3)
def made_by_every_rank(rank, world_size, device):
    x, y = torch.tensor([10**rank], device=device), torch.tensor([10**rank], device=device)
    pair = dist.new_group([1, 2])
    if rank > 0:
        dist.all_reduce(x, group=pair)
    dist.barrier()
    everyone = dist.new_group()
    dist.all_reduce(y, group=everyone)
    check(
        [x, y],
        [torch.tensor([110 if rank > 0 else 1]), torch.tensor([111])],
        "all_reduce(SUM, group=...)",
    )
    return {"pair": x, "everyone": y}


# %%
if __name__ == "__main__":
    run(made_by_every_rank, folded=True)

# %% [markdown]
# ## Program 2: one group for gradients, one for losses
#
# **You see.** Both groups have the same three ranks, and yet all three wait in the same line, the
# first sum. After 30 minutes:
#
# ```text
# RuntimeError: [.../gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1800000ms for recv operation to complete
# ```


# %%
@mistake("hangs", ranks=3)
def gradients_and_losses(rank, world_size, device):
    names = ["losses", "gradients"] if rank == 1 else ["gradients", "losses"]
    groups = {name: dist.new_group() for name in names}
    gradient = torch.tensor([10**rank], device=device)
    dist.all_reduce(gradient, group=groups["gradients"])
    check(gradient, torch.tensor([111]), "all_reduce(SUM, group=...)")


# %%
if __name__ == "__main__":
    run(gradients_and_losses, folded=True)

# %% [markdown]
# <details><summary>What is wrong?</summary>
#
# **Cause: the groups are created in another order.** The order of creation identifies a group, and
# not the name of your variable. The group that rank 1 calls "losses" is the one that ranks 0 and 2
# call "gradients", so they wait for each other in different groups. Asynchronous calls would even
# find a match there, and add losses to gradients.
#
# **Cure.** Create the groups in the same order on all ranks.
#
# **Early.** Pass `group_desc="gradients"` to `new_group`, and torch's own messages show this name.
#
# </details>


# %%
@cure(ranks=3)
def groups_in_one_order(rank, world_size, device):
    names = ["losses", "gradients"] if rank == 1 else ["gradients", "losses"]
    groups = {name: dist.new_group(group_desc=name) for name in sorted(names)}
    gradient = torch.tensor([10**rank], device=device)
    dist.all_reduce(gradient, group=groups["gradients"])
    check(gradient, torch.tensor([111]), "all_reduce(SUM, group=...)")
    return {"gradient": gradient}


# %%
if __name__ == "__main__":
    run(groups_in_one_order, folded=True)

# %% [markdown]
# ## Program 3: settings from the second rank of a group
#
# **You see.** In a group of ranks 1 and 2, the second rank should send its settings. There is no
# error, but they do not arrive.


# %%
@mistake("wrong numbers", ranks=3)
def share_settings(rank, world_size, device):
    workers = dist.new_group([1, 2])
    settings = torch.tensor([7 if rank == 2 else -1], device=device)
    if rank > 0:
        dist.broadcast(settings, src=1, group=workers)  # meant: the second rank of the group
        check(settings, torch.tensor([7]), "broadcast(group=...)")


# %%
if __name__ == "__main__":
    run(share_settings, folded=True)

# %% [markdown]
# <details><summary>What is wrong?</summary>
#
# **Cause: `src` is a rank of the world.** `src` and `dst` are ranks of the world, even with
# `group=`. So rank 1 is the first rank of this group, and its -1 overwrites the 7. There would be
# an error only if rank 1 of the world were not in the group.
#
# **Cure.** Use `group_src` and `group_dst`, which count within the group.
#
# **Early.** Test with a group that does not begin at rank 0, because in a group of ranks 0 and 1
# the two numbers are equal.
#
# </details>


# %%
@cure(ranks=3)
def group_src(rank, world_size, device):
    workers = dist.new_group([1, 2])
    settings = torch.tensor([7 if rank == 2 else -1], device=device)
    if rank > 0:
        dist.broadcast(settings, group_src=1, group=workers)
        check(settings, torch.tensor([7]), "broadcast(group_src=..., group=...)")
    return {"settings": settings}


# %%
if __name__ == "__main__":
    run(group_src, folded=True)

# %% [markdown]
# ## Program 4: groups that only their members create
#
# **You see.** Ranks 0 and 1 create a pair, then ranks 1 and 2 create one, each only by its members,
# as `use_local_synchronization` allows. The first pair works. But the ranks of the second wait for
# each other, in the same call with the same ranks. After 30 minutes:
#
# ```text
# RuntimeError: Wait timeout
# ```


# %%
@mistake("hangs", ranks=3)
def created_by_members(rank, world_size, device):
    x = torch.tensor([10**rank], device=device)
    if rank < 2:
        pair = dist.new_group([0, 1], use_local_synchronization=True)
    if rank > 0:
        pair = dist.new_group([1, 2], use_local_synchronization=True)
        dist.all_reduce(x, group=pair)
    check(x, torch.tensor([110 if rank > 0 else 1]), "all_reduce(SUM, group=...)")


# %%
if __name__ == "__main__":
    run(created_by_members, folded=True)

# %% [markdown]
# <details><summary>What is wrong?</summary>
#
# **Cause: rank 1 is in one group more than rank 2.** Without a call of all ranks, nobody can number
# the groups. So torch makes a name from the list of ranks and from the number of groups that the
# calling rank is already in (`torch/distributed/distributed_c10d.py`: "In case there is already a
# PG with the same rank composition"). Rank 1 is in two, and rank 2 in one, so they look for each
# other under different names.
#
# **Cure.** Let all ranks create all groups, without this option. It saves time only where there are
# thousands of ranks, and there it is safe if the groups do not overlap.
#
# **Early.** Print `dist.distributed_c10d._world.pg_names` on two members: both must have equally
# many.
#
# </details>


# %%
@cure(ranks=3)
def created_by_all(rank, world_size, device):
    x = torch.tensor([10**rank], device=device)
    dist.new_group([0, 1])
    pair = dist.new_group([1, 2])
    if rank > 0:
        dist.all_reduce(x, group=pair)
    check(x, torch.tensor([110 if rank > 0 else 1]), "all_reduce(SUM, group=...)")
    return {"x": x}


# %%
if __name__ == "__main__":
    run(created_by_all, folded=True)

# %% [markdown]
# ## Fix it yourself
#
# In your folder of [exercises](../../README.md#exercises):
#
# ```sh
# collectives practice repair_the_groups
# collectives practice rank_in_a_group
# ```
#
# Next lesson: [processes](../../notebooks/mistakes/processes.ipynb), in which the calls fit, but
# one of the ranks is not there.

# %%
STEPS = [
    pair_then_everyone,
    made_by_every_rank,
    gradients_and_losses,
    groups_in_one_order,
    share_settings,
    group_src,
    created_by_members,
    created_by_all,
]
