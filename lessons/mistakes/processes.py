# %% [markdown]
"""
# processes: a rank that crashes, exits or is slow

One rank fails, ends or is slow while the other ranks wait for it, or a process makes a call that is
no rank.

The errors that the waiting ranks get never name the cause: they speak of connections and time
limits. At the end of this lesson you know which error to believe, and how a rank can drop out
without taking all others with it.

Find each mistake yourself first: read "You see" and the program, and say which line is wrong. Then
open the output, the answer, and the cure below it.

    python lessons/mistakes/processes.py
    torchrun --nproc-per-node 4 lessons/mistakes/processes.py
"""

# %%
from collectives import check, cure, mistake, run, span
from datetime import timedelta
import sys
import time
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

# %% [markdown]
# ## Program 1: a sum of losses
#
# **You see.** There are three tracebacks. Two of them are about the network:
#
# ```text
# RuntimeError: [.../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:21659. This is typically caused by a
# remote worker crashing. Check the logs of the remote worker before reporting an error.
# ```
#
# The third one is on rank 1:
#
# ```text
# KeyError: 'loss'
# ```


# %%
@mistake("raises an error", ranks=3)
def add_losses_of_batches(rank, world_size, device):
    batch = {} if rank == 1 else {"loss": 2.0}
    total = torch.tensor([batch["loss"]], device=device)
    dist.all_reduce(total)
    check(total, torch.tensor([6.0]), "all_reduce(SUM)")


# %%
if __name__ == "__main__":
    run(add_losses_of_batches, folded=True)

# %% [markdown]
# <details><summary>What is wrong?</summary>
#
# **Cause: one rank raises an error.** One batch on rank 1 is bad, and "Connection closed by peer"
# on ranks 0 and 2 only follows from that. (It may also read "Connection reset by peer" or "Broken
# pipe".) If rank 1 caught its error and continued, the other two ranks would wait for it, or their
# call would be matched with its next one.
#
# **Cure.** Let the ranks decide together whether to skip the batch, in one small collective before
# the large one.
#
# **Early.** If there are many tracebacks, believe the one that is not about connections, or the
# earliest.
#
# </details>


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
    run(skip_together, folded=True)

# %% [markdown]
# ## Program 2: a sum of shards
#
# **You see.** One rank ends without an error, and the other two lose their connection to it:
#
# ```text
# RuntimeError: [.../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:21659. This is typically caused by a
# remote worker crashing. Check the logs of the remote worker before reporting an error.
# ```


# %%
@mistake("breaks off", ranks=3)
def sum_of_shards(rank, world_size, device):
    shards = [[1.0], [10.0], []]
    if not shards[rank]:
        sys.exit(0)  # nothing to do for me
    total = torch.tensor(shards[rank], device=device)
    dist.all_reduce(total)
    check(total, torch.tensor([11.0]), "all_reduce(SUM)")


# %%
if __name__ == "__main__":
    run(sum_of_shards, folded=True)

# %% [markdown]
# <details><summary>What is wrong?</summary>
#
# **Cause: one rank ends too early.** A collective needs every rank of the group, even those that
# have no data. It looks the same when the kernel kills a rank that uses too much memory, but then
# torchrun reports `exitcode: -9`.
#
# **Cure.** Let a rank without data contribute a zero.
#
# **Early.** Look twice at each `exit`, `return` and `break` that depends on a rank's own data.
#
# </details>


# %%
@cure(ranks=3)
def give_zero(rank, world_size, device):
    shards = [[1.0], [10.0], []]
    total = torch.tensor([float(sum(shards[rank]))], device=device)
    dist.all_reduce(total)
    check(total, torch.tensor([11.0]), "all_reduce(SUM)")
    return {"gave": shards[rank], "total": total}


# %%
if __name__ == "__main__":
    run(give_zero, folded=True)

# %% [markdown]
# ## Program 3: a checkpoint, then a sum
#
# **You see.** Rank 1 raises an error:
#
# ```text
# RuntimeError: [.../gloo/transport/tcp/unbound_buffer.cc:129] Timed out waiting 300ms for send operation to complete
# ```
#
# With the default time limit of gloo, 30 minutes, the message says `1800000ms`. On NCCL the limit
# is 10 minutes (`torch/distributed/distributed_c10d.py`: "Default value is 10 minutes for NCCL and
# 30 minutes for other backends"), and then its [watchdog](../../docs/glossary.md#watchdog) ends the
# process with a message [such as](https://github.com/NVIDIA/Megatron-LM/issues/1207)
#
# ```text
# Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000)
# ran for 600013 milliseconds before timing out.
# ```


# %%
@mistake("raises an error", ranks=2)
def checkpoint_then_sum(rank, world_size, device):
    group = dist.new_group(timeout=timedelta(seconds=0.3))
    if rank == 0:
        with span("write a checkpoint"):
            time.sleep(0.8)
    x = torch.tensor([10**rank], device=device)
    dist.all_reduce(x, group=group)
    check(x, torch.tensor([11]), "all_reduce(SUM)")


# %%
if __name__ == "__main__":
    run(checkpoint_then_sum, folded=True)

# %% [markdown]
# <details><summary>What is wrong?</summary>
#
# **Cause: a slow rank and a short time limit.** The time limit of a group counts how long a rank
# waits for the other ranks, whatever keeps them busy. Here rank 0 writes its checkpoint for longer
# than the 0.3 s that rank 1 waits. After a timeout the group cannot be used any more.
#
# **Cure.** Choose a time limit longer than the longest task that one rank does alone, or let all
# ranks do the task.
#
# **Early.** A rank that "timed out" was on time, so look for the rank that does not complain.
#
# </details>


# %%
@cure(ranks=2)
def long_enough_timeout(rank, world_size, device):
    group = dist.new_group(timeout=timedelta(seconds=30))
    if rank == 0:
        with span("write a checkpoint"):
            time.sleep(0.8)
    x = torch.tensor([10**rank], device=device)
    dist.all_reduce(x, group=group)
    check(x, torch.tensor([11]), "all_reduce(SUM)")
    return {"x": x}


# %%
if __name__ == "__main__":
    run(long_enough_timeout, folded=True)

# %% [markdown]
# ## Program 4: the training function is called twice
#
# **You see.** The training function works once, but the second call in the same process, as in a
# notebook or a sweep, fails:
#
# ```text
# ValueError: trying to initialize the default process group twice!
# ```


# %%
@mistake("raises an error", ranks=2, fresh=True)
def train_twice(rank, world_size, device):
    for _ in range(2):
        dist.init_process_group("gloo")
        x = torch.tensor([10**rank], device=device)
        dist.all_reduce(x)
        check(x, torch.tensor([11]), "all_reduce(SUM)")


# %%
if __name__ == "__main__":
    run(train_twice, folded=True)

# %% [markdown]
# <details><summary>What is wrong?</summary>
#
# **Cause: the group is never destroyed.** A process has one default group, and keeps it until it
# calls `destroy_process_group`.
#
# **Cure.** Initialize and destroy once, around everything. (To do both in every turn is no cure,
# because the second start can find the addresses of the first one in the store.)
#
# **Early.** Put `init_process_group` and `destroy_process_group` into `main()`, with the work
# between them.
#
# </details>


# %%
@cure(ranks=2, fresh=True)
def destroyed_at_the_end(rank, world_size, device):
    dist.init_process_group("gloo")
    sums = []
    for _ in range(2):
        x = torch.tensor([10**rank], device=device)
        dist.all_reduce(x)
        check(x, torch.tensor([11]), "all_reduce(SUM)")
        sums.append(x.item())
    dist.destroy_process_group()
    return {"sums": sums, "group left": dist.is_initialized()}


# %%
if __name__ == "__main__":
    run(destroyed_at_the_end, folded=True)

# %% [markdown]
# ## Program 5: a mean over all ranks, in the loader
#
# **You see.** Both ranks wait for their first batch, and their DataLoader workers wait in the sum.
# The same function works with `num_workers=0`.


# %%
@mistake("hangs", ranks=2)
def center_in_the_loader(rank, world_size, device):
    def centered(samples):
        x = torch.tensor(samples, dtype=torch.float32)
        mean = x.mean() / world_size
        dist.all_reduce(mean)
        return x - mean

    samples = [2 * rank, 2 * rank + 1]
    loader = DataLoader(
        samples, batch_size=2, num_workers=1, collate_fn=centered, multiprocessing_context="fork"
    )
    (batch,) = loader
    check(batch, torch.tensor([[-1.5, -0.5], [0.5, 1.5]][rank]), "all_reduce(SUM)")


# %%
if __name__ == "__main__":
    run(center_in_the_loader, folded=True)

# %% [markdown]
# <details><summary>What is wrong?</summary>
#
# **Cause: a worker of the DataLoader makes a call.** The worker is a copy of its rank, made by
# `fork`, and it believes that it is in the group. But the threads that move gloo's messages were
# not copied, so nobody sends or receives. (A worker that is made by `spawn` has no group at all,
# and raises an error that says so.)
#
# **Cure.** Let the workers prepare data, and make the call in the rank, when it has the batch.
#
# **Early.** Try the program with a worker and two ranks before the long run, and look for
# collectives in `collate_fn`, in transforms and in `__getitem__`.
#
# </details>


# %%
@cure(ranks=2)
def center_in_the_rank(rank, world_size, device):
    samples = [2 * rank, 2 * rank + 1]
    loader = DataLoader(samples, batch_size=2, num_workers=1, multiprocessing_context="fork")
    (batch,) = loader
    mean = batch.float().mean() / world_size
    dist.all_reduce(mean)
    batch = batch - mean
    check(batch, torch.tensor([[-1.5, -0.5], [0.5, 1.5]][rank]), "all_reduce(SUM)")
    return {"mean": mean, "batch": batch}


# %%
if __name__ == "__main__":
    run(center_in_the_rank, folded=True)

# %% [markdown]
# Next lesson: [data](../../notebooks/mistakes/data.ipynb), in which no rank fails or waits, and the
# result is wrong all the same.

# %%
STEPS = [
    add_losses_of_batches,
    skip_together,
    sum_of_shards,
    give_zero,
    checkpoint_then_sum,
    long_enough_timeout,
    train_twice,
    destroyed_at_the_end,
    center_in_the_loader,
    center_in_the_rank,
]
