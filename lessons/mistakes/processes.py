# %% [markdown]
"""
# processes

One rank fails, leaves or is slow while the others wait for it.

You will see the errors that the other ranks get. They never name the cause. Each mistake runs in
ranks of its own for a second or two. Then its cure runs.

    python lessons/mistakes/processes.py
    torchrun --nproc-per-node 4 lessons/mistakes/processes.py
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
# **Symptom.** There are three tracebacks. Two of them are about the network:
#
# ```text
# RuntimeError: [.../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:21659. This is typically caused by a
# remote worker crashing. Check the logs of the remote worker before reporting an error.
# ```
#
# The third one, on rank 1, is the cause:
#
# ```text
# KeyError: 'loss'
# ```


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
# **Cause.** One batch on one rank is bad. "Connection closed by peer" on the others is only the
# echo. (It may also read "Connection reset by peer" or "Broken pipe".) If rank 1 catches its error
# and goes on, the others wait for it instead, or meet it in the wrong call.
#
# **Cure.** Let the ranks decide together whether to skip the batch: one small collective, before
# the large one.
#
# **Early.** If there are many tracebacks, believe the one that is not about connections, or the
# earliest.


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
# **Symptom.** One rank ends without an error. The others lose their connection to it:
#
# ```text
# RuntimeError: [.../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:21659. This is typically caused by a
# remote worker crashing. Check the logs of the remote worker before reporting an error.
# ```


# %%
@mistake("breaks off", ranks=3)
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
# **Cause.** A collective needs every rank of the group, even those that have no data. It looks the
# same when the kernel kills a rank that uses too much memory. Then torchrun reports `exitcode: -9`.
#
# **Cure.** A rank without data contributes a zero.
#
# **Early.** Look twice at each `exit`, `return` and `break` that depends on a rank's own data.


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
# **Symptom.** Rank 0 writes a checkpoint. Rank 1 waits only 0.3 s:
#
# ```text
# RuntimeError: [.../gloo/transport/tcp/unbound_buffer.cc:129] Timed out waiting 300ms for send operation to complete
# ```
#
# When rank 0 comes back, rank 1 has gone. With the default time limit of 30 minutes, the message
# says `1800000ms`. NCCL waits 10 minutes, and then its watchdog ends the process (documented):
#
# ```text
# [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, NumelIn=1, NumelOut=1,
# Timeout(ms)=600000) ran for 600013 milliseconds before timing out.
# ```


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
# **Cause.** The time limit of a group counts how long a rank waits for the others, whatever keeps
# them busy. After a timeout the group cannot be used any more.
#
# **Cure.** Choose a time limit longer than the longest task that one rank does alone. Or let all
# ranks do the task.
#
# **Early.** A rank that "timed out" was on time. Look for the rank that does not complain.


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
# **Symptom.** The training function works once. A second call in the same process (in a notebook or
# a sweep) fails:
#
# ```text
# ValueError: trying to initialize the default process group twice!
# ```


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
# **Cause.** A process has one default group until it calls `destroy_process_group`. If a program
# forgets that call at its end, gloo does not mind. NCCL prints a warning, and the program may hang
# while it exits (documented).
#
# **Cure.** Initialize and destroy once, around everything. (Doing both in every turn is no cure:
# the second start can find the addresses of the first one in the store.)
#
# **Early.** Put `init_process_group` and `destroy_process_group` into `main()`, with the work
# between them.


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
