# %% [markdown]
"""
# groups

A group is made by all ranks of the world, also by those who will not be in it, and all make their groups in one order.

You will see what happens when they do not, and which of two numbers a rank of a group goes by. Each mistake runs in ranks of its
own for a second or two, and is then cured.

    python lessons/mistakes/groups.py
    torchrun --nproc-per-node 4 lessons/mistakes/groups.py

To run it, clone the repository and type `make tour`, or `pip install -e .` where you already have torch.
"""

# %%
from collectives import check
from collectives.lesson import cure, mistake, run
import torch
import torch.distributed as dist

# %% [markdown]
# ## Made by its members only
#
# **Symptom.** The pair works. Then the world makes another group, and all three wait: the mistake is over by then.


# %%
@mistake("hangs", ranks=3)
def made_by_its_members_only(rank, world_size, device):
    x, y = torch.tensor([rank], device=device), torch.tensor([rank], device=device)
    if rank > 0:
        pair = dist.new_group([1, 2])
        dist.all_reduce(x, group=pair)
    dist.barrier()
    everyone = dist.new_group()
    dist.all_reduce(y, group=everyone)
    check([x, y], [torch.tensor([3 if rank > 0 else 0]), torch.tensor([3])], "all_reduce(SUM, group=...)")


# %%
if __name__ == "__main__":
    run(made_by_its_members_only)

# %% [markdown]
# **Cause.** Groups are numbered, and each process counts for itself. What ranks 1 and 2 call their second group is rank 0's first:
# they look for each other under different names. gloo lets the first one pass; NCCL may hang there already.
#
# **Cure.** Every rank makes every group, and uses those that it is in.
#
# **Early.** `new_group` below an `if rank` is a mistake, even while it works. Make all groups in one place, right after start-up.


# %%
@cure(ranks=3)
def made_by_every_rank(rank, world_size, device):
    x, y = torch.tensor([rank], device=device), torch.tensor([rank], device=device)
    pair = dist.new_group([1, 2])
    if rank > 0:
        dist.all_reduce(x, group=pair)
    dist.barrier()
    everyone = dist.new_group()
    dist.all_reduce(y, group=everyone)
    check([x, y], [torch.tensor([3 if rank > 0 else 0]), torch.tensor([3])], "all_reduce(SUM, group=...)")
    return {"pair": x, "everyone": y}


# %%
if __name__ == "__main__":
    run(made_by_every_rank)

# %% [markdown]
# ## Made in another order
#
# **Symptom.** Two groups of the same ranks, one for gradients and one for losses. The first sum waits, on every rank, in one line.


# %%
@mistake("hangs", ranks=3)
def groups_in_another_order(rank, world_size, device):
    names = ["losses", "gradients"] if rank == 1 else ["gradients", "losses"]
    groups = {name: dist.new_group() for name in names}
    gradient = torch.tensor([rank + 1], device=device)
    dist.all_reduce(gradient, group=groups["gradients"])
    check(gradient, torch.tensor([6]), "all_reduce(SUM, group=...)")


# %%
if __name__ == "__main__":
    run(groups_in_another_order)

# %% [markdown]
# **Cause.** The group that rank 1 calls "losses" is the one that the others call "gradients": a group is known by when it was made,
# not by the name of your variable. Every rank is in the right line, in the wrong room. Asynchronous calls would meet the wrong
# partner in there, and add losses to gradients.
#
# **Cure.** One order for all ranks.
#
# **Early.** Pass `group_desc="gradients"` to `new_group`: the name then stands in torch's own messages.


# %%
@cure(ranks=3)
def groups_in_one_order(rank, world_size, device):
    names = ["losses", "gradients"] if rank == 1 else ["gradients", "losses"]
    groups = {name: dist.new_group(group_desc=name) for name in sorted(names)}
    gradient = torch.tensor([rank + 1], device=device)
    dist.all_reduce(gradient, group=groups["gradients"])
    check(gradient, torch.tensor([6]), "all_reduce(SUM, group=...)")
    return {"gradient": gradient}


# %%
if __name__ == "__main__":
    run(groups_in_one_order)

# %% [markdown]
# ## Which rank 1?
#
# **Symptom.** In a group of ranks 1 and 2 the second one has the settings, and nobody gets them.


# %%
@mistake("wrong numbers", ranks=3)
def group_rank_as_src(rank, world_size, device):
    workers = dist.new_group([1, 2])
    settings = torch.tensor([7 if rank == 2 else -1], device=device)
    if rank > 0:
        dist.broadcast(settings, src=1, group=workers)  # the second of the group, by its rank in there
        check(settings, torch.tensor([7]), "broadcast(group=...)")


# %%
if __name__ == "__main__":
    run(group_rank_as_src)

# %% [markdown]
# **Cause.** `src` and `dst` are ranks of the world, also with `group=`. Rank 1 of the world is the first of this group. Were it not
# in the group at all, there would be an error.
#
# **Cure.** `group_src` and `group_dst` count within the group.
#
# **Early.** Test with a group that does not begin at rank 0. In a group of ranks 0 and 1 both numbers are the same.


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
    run(group_src)

# %%
STEPS = [
    made_by_its_members_only,
    made_by_every_rank,
    groups_in_another_order,
    groups_in_one_order,
    group_rank_as_src,
    group_src,
]
