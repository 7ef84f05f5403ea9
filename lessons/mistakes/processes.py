# %% [markdown]
"""
# processes

A rank fails, leaves, or takes its time, and the others have a line in which they wait for it.

You will see what the others are told, which is never the cause. Each mistake runs in ranks of its own for a second or two, and is
then cured.

    python lessons/mistakes/processes.py
    torchrun --nproc-per-node 4 lessons/mistakes/processes.py

To run it, clone the repository and type `make tour`, or `pip install -e .` where you already have torch.
"""

# %%
from collectives import check
from collectives.lesson import cure, mistake, run
from datetime import timedelta
import sys
import time
import torch
import torch.distributed as dist

# %% [markdown]
# ## One rank raises
#
# **Symptom.** Three tracebacks. Two of them are about the network.


# %%
@mistake("raises an error", ranks=3)
def one_rank_raises(rank, world_size, device):
    batch = {} if rank == 1 else {"loss": 2.0}
    total = torch.tensor([batch["loss"]], device=device)
    dist.all_reduce(total)
    check(total, torch.tensor([6.0]), "all_reduce(SUM)")


# %%
if __name__ == "__main__":
    run(one_rank_raises)

# %% [markdown]
# **Cause.** One bad batch, on one rank. "Connection closed by peer" on the others is the echo. If the rank that failed catches its
# error and goes on, the others wait for it instead, or meet it in the wrong call.
#
# **Cure.** Let the ranks decide together whether to skip: one small sum, before anybody commits to the large one.
#
# **Early.** Of many tracebacks believe the one that is not about connections, or the first by the clock.


# %%
@cure(ranks=3)
def skip_together(rank, world_size, device):
    batch = {} if rank == 1 else {"loss": 2.0}
    good = torch.tensor(int("loss" in batch), device=device)
    dist.all_reduce(good, op=dist.ReduceOp.MIN)
    total = torch.tensor([batch.get("loss", 0.0)], device=device)
    if good:
        dist.all_reduce(total)
    check(good.item(), 0, "all_reduce(MIN): one batch is bad")
    return {"has a loss": "loss" in batch, "outcome": "reduced" if good else "skipped"}


# %%
if __name__ == "__main__":
    run(skip_together)

# %% [markdown]
# ## One rank leaves
#
# **Symptom.** A rank ends, without any error. The others are told that the line is dead.


# %%
@mistake("dies", ranks=3)
def one_rank_leaves(rank, world_size, device):
    shards = [[1.0], [2.0], []]
    if not shards[rank]:
        sys.exit(0)  # nothing to do for me
    total = torch.tensor(shards[rank], device=device)
    dist.all_reduce(total)
    check(total, torch.tensor([3.0]), "all_reduce(SUM)")


# %%
if __name__ == "__main__":
    run(one_rank_leaves)

# %% [markdown]
# **Cause.** The others count on every rank of the world, busy or not. It looks the same when the kernel kills a rank that wants too
# much memory; then torchrun reports `exitcode: -9`.
#
# **Cure.** A rank with nothing to give gives zero.
#
# **Early.** `exit`, `return` and `break` that depend on a rank's own data deserve a second look.


# %%
@cure(ranks=3)
def give_zero(rank, world_size, device):
    shards = [[1.0], [2.0], []]
    total = torch.tensor([float(sum(shards[rank]))], device=device)
    dist.all_reduce(total)
    check(total, torch.tensor([3.0]), "all_reduce(SUM)")
    return {"gave": shards[rank], "total": total}


# %%
if __name__ == "__main__":
    run(give_zero)

# %% [markdown]
# ## A slow rank and a short timeout
#
# **Symptom.** Rank 0 writes a checkpoint. Rank 1 has lost patience; when rank 0 comes back, nobody is there.


# %%
@mistake("raises an error", ranks=2)
def slow_rank(rank, world_size, device):
    group = dist.new_group(timeout=timedelta(seconds=0.3))
    if rank == 0:
        time.sleep(0.8)  # writes a checkpoint
    x = torch.tensor([rank], device=device)
    dist.all_reduce(x, group=group)
    check(x, torch.tensor([1]), "all_reduce(SUM)")


# %%
if __name__ == "__main__":
    run(slow_rank)

# %% [markdown]
# **Cause.** The timeout of a group (30 minutes, 10 on NCCL, unless you say otherwise) counts the time in which a rank waits for the
# others, whatever they are busy with. After it the group is of no use any more.
#
# **Cure.** A timeout longer than the longest thing that one rank does alone; or do it on all ranks.
#
# **Early.** A rank that "timed out" is the one that was on time. Look for the rank that does not complain.


# %%
@cure(ranks=2)
def long_enough_timeout(rank, world_size, device):
    group = dist.new_group(timeout=timedelta(seconds=30))
    if rank == 0:
        time.sleep(0.8)
    x = torch.tensor([rank], device=device)
    dist.all_reduce(x, group=group)
    check(x, torch.tensor([1]), "all_reduce(SUM)")
    return {"x": x}


# %%
if __name__ == "__main__":
    run(long_enough_timeout)

# %% [markdown]
# ## A group that is never destroyed
#
# **Symptom.** The training function works once. The second call, in the same process (a notebook, a sweep), is refused.


# %%
@mistake("raises an error", ranks=2, fresh=True)
def never_destroyed(rank, world_size, device):
    for _ in range(2):
        dist.init_process_group("gloo")
        x = torch.tensor([rank], device=device)
        dist.all_reduce(x)
        check(x, torch.tensor([1]), "all_reduce(SUM)")


# %%
if __name__ == "__main__":
    run(never_destroyed)

# %% [markdown]
# **Cause.** A process has one default group, until `destroy_process_group`. At the end of a program gloo does not mind if it is
# forgotten; NCCL prints a warning, and may hang on the way out.
#
# **Cure.** Set up and tear down once, around everything. (Doing both in every turn is no cure: the second start can find
# the first one's addresses in the store.)
#
# **Early.** `init_process_group` and `destroy_process_group` belong in `main()`, with the work between them.


# %%
@cure(ranks=2, fresh=True)
def destroyed_at_the_end(rank, world_size, device):
    dist.init_process_group("gloo")
    sums = []
    for _ in range(2):
        x = torch.tensor([rank], device=device)
        dist.all_reduce(x)
        check(x, torch.tensor([1]), "all_reduce(SUM)")
        sums.append(x.item())
    dist.destroy_process_group()
    return {"sums": sums, "group left": dist.is_initialized()}


# %%
if __name__ == "__main__":
    run(destroyed_at_the_end)

# %%
STEPS = [
    one_rank_raises,
    skip_together,
    one_rank_leaves,
    give_zero,
    slow_rank,
    long_enough_timeout,
    never_destroyed,
    destroyed_at_the_end,
]
