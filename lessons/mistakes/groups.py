# %% [markdown]
"""
# groups

All ranks of the world must create every group, even the ranks that are not in it, and all in the
same order.

You will see what happens when they do not, and that a rank of a group has two numbers. Each mistake
runs in ranks of its own for a second or two. Then its cure runs.

    python lessons/mistakes/groups.py
    torchrun --nproc-per-node 4 lessons/mistakes/groups.py
"""

# %%
from collectives import check
from collectives.lesson import cure, mistake, run
import torch
import torch.distributed as dist

# %% [markdown]
# ## Only the members create the group
#
# **Symptom.** The pair works. Later all three ranks create another group, and all three wait there,
# far away from the mistake. After 30 minutes:
#
# ```text
# RuntimeError: Wait timeout
# ```


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
    check(
        [x, y],
        [torch.tensor([3 if rank > 0 else 0]), torch.tensor([3])],
        "all_reduce(SUM, group=...)",
    )


# %%
if __name__ == "__main__":
    run(made_by_its_members_only)

# %% [markdown]
# **Cause.** Groups are numbered, and each process counts for itself. The second group of ranks 1
# and 2 is the first group of rank 0, so they look for each other under different names. On gloo the
# first group works. NCCL may hang there already (documented).
#
# **Cure.** Every rank creates every group, and uses the groups that it is in.
#
# **Early.** `new_group` under an `if rank` is a mistake, even while it works. Create all groups in
# one place, right after start-up.


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
    check(
        [x, y],
        [torch.tensor([3 if rank > 0 else 0]), torch.tensor([3])],
        "all_reduce(SUM, group=...)",
    )
    return {"pair": x, "everyone": y}


# %%
if __name__ == "__main__":
    run(made_by_every_rank)

# %% [markdown]
# ## Groups created in another order
#
# **Symptom.** There are two groups of the same ranks, one for gradients and one for losses. All
# ranks wait in the same line, the first sum. After 30 minutes:
#
# ```text
# RuntimeError: [.../gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1800000ms for recv operation to complete
# ```


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
# **Cause.** What identifies a group is when it was created, not the name of your variable. What
# rank 1 calls "losses" is the group that the others call "gradients". Everybody is in the right
# line, in the wrong room. Asynchronous calls would meet the wrong partner there and add losses to
# gradients.
#
# **Cure.** Create the groups in the same order on all ranks.
#
# **Early.** Pass `group_desc="gradients"` to `new_group`. Then torch's own messages show this name.


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
# **Symptom.** In a group of ranks 1 and 2, the second rank should send its settings. There is no
# error, and they do not arrive.


# %%
@mistake("wrong numbers", ranks=3)
def group_rank_as_src(rank, world_size, device):
    workers = dist.new_group([1, 2])
    settings = torch.tensor([7 if rank == 2 else -1], device=device)
    if rank > 0:
        dist.broadcast(settings, src=1, group=workers)  # meant: the second rank of the group
        check(settings, torch.tensor([7]), "broadcast(group=...)")


# %%
if __name__ == "__main__":
    run(group_rank_as_src)

# %% [markdown]
# **Cause.** `src` and `dst` are ranks of the world, even with `group=`. Rank 1 of the world is the
# first rank of this group, so its -1 overwrites the 7. If rank 1 of the world were not in the
# group, there would be an error.
#
# **Cure.** Use `group_src` and `group_dst`: they count within the group.
#
# **Early.** Test with a group that does not begin at rank 0. In a group of ranks 0 and 1, the two
# numbers are equal.


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
