# %% [markdown]
"""
# barrier

No rank leaves the barrier before every rank has come to it.

A **rank** is one process of the job, and its number, from 0; the **world size**, n below, is how many there are. A **group** is
some of the ranks, for calls among themselves. The **backend** is the library that moves the bytes: gloo (CPU), NCCL (GPU) or MPI.

You will see what that orders (files, and whatever else ranks do outside of `torch.distributed`) and what it does not: output that
is still in a buffer, ranks outside the group, work in another group. And a barrier that names the ranks that did not come.

    python lessons/barrier.py
    torchrun --nproc-per-node 4 lessons/barrier.py

To run it, clone the repository and type `make tour`; or, where you already have torch, `pip install -e '.[notebooks]'`.
"""

# %%
import contextlib
from datetime import timedelta
from pathlib import Path
import re
import tempfile
import time
from collectives import check
from collectives.lesson import needs, run
import torch
import torch.distributed as dist

# %% [markdown]
# ## Worked numbers
#
# Four ranks share a folder. Each leaves a file there that bears its number, comes to the barrier, and then looks who has been
# there. However late one of them is, everybody finds all four. Without the barrier, the fast ones would find fewer.
#
# | rank | leaves | finds |
# |---|---|---|
# | 0 | 0 | [0, 1, 2, 3] |
# | 1 | 1 | [0, 1, 2, 3] |
# | 2 | 2 | [0, 1, 2, 3] |
# | 3 | 3 | [0, 1, 2, 3] |

# %% [markdown]
# ## The code
#
# First the folder: rank 0 makes it and tells the others its name; a barrier keeps it until everybody has looked. (Over several
# machines it must be a folder that all of them see.)


# %%
@contextlib.contextmanager
def shared_folder(rank):
    with tempfile.TemporaryDirectory() if rank == 0 else contextlib.nullcontext() as folder:
        name = [folder]
        dist.broadcast_object_list(name, src=0)
        yield Path(name[0])
        dist.barrier()


# %% [markdown]
# Now every rank in turn is the late one.


# %%
def barrier(rank, world_size, device):
    with shared_folder(rank) as folder:
        for late in range(world_size):
            if rank == late:
                time.sleep(0.1)
            (folder / f"{late}-{rank}").touch()

            dist.barrier()

            found = sorted(int(path.name.split("-")[1]) for path in folder.glob(f"{late}-*"))
            check(found, list(range(world_size)), f"barrier, rank {late} is late")
    return {"leaves": rank, "finds": found}


# %%
if __name__ == "__main__":
    run(barrier)

# %% [markdown]
# ### It flushes nothing
#
# A barrier orders what has been done. Here every rank writes a line into a file, without closing it, and comes to a barrier; then
# it reads its left neighbour's file.


# %%
def barrier_flushes_nothing(rank, world_size, device):
    left = (rank - 1) % world_size
    with shared_folder(rank) as folder, open(folder / str(rank), "w") as file:
        file.write(f"written by rank {rank}")
        dist.barrier()
        early = (folder / str(left)).read_text()
        dist.barrier()  # all have looked

        file.flush()
        dist.barrier()
        late = (folder / str(left)).read_text()

    check(early, "", "barrier without a flush")
    check(late, f"written by rank {left}", "barrier after a flush")
    return {"left neighbour's file": early or "empty", "after a flush": late}


# %% [markdown]
# **Predict first.** Every rank has called `write` before any rank leaves the barrier. What does the neighbour find in the file?

# %%
if __name__ == "__main__":
    run(barrier_flushes_nothing)

# %% [markdown]
# **Why.** A line in a buffer has not been written. With `print` it is the same: into a pipe or a file Python buffers it (unless
# started with `-u`, as torchrun does), and lines come out in any order. This is why the ranks of these lessons return their
# results, and one process prints them.

# %% [markdown]
# ### Enter now, leave later
#
# With `async_op=True` a rank says that it has come, and goes on; `wait()` is where it stops until all have come. Between the two
# it may do whatever need not be ordered. The proof needs no clock: all but one enter the barrier and ask whether it is complete;
# that one enters only after they have asked. A barrier in a second group of the same ranks tells it when.


# %%
@needs(ranks=2)
def barrier_in_the_background(rank, world_size, device):
    second = dist.new_group()
    for group in (None, second):
        dist.barrier(group=group)  # a backend may connect at the first call, and want every rank for that
    before, after = [], []
    for late in range(world_size):
        if rank != late:
            work = dist.barrier(async_op=True)
            before.append(work.is_completed())
        dist.barrier(group=second)
        if rank == late:
            work = dist.barrier(async_op=True)
        work.wait()
        after.append(work.is_completed())

    check(before, [False] * (world_size - 1), "barrier(async_op=True), one rank is not there yet")
    check(after, [True] * world_size, "barrier(async_op=True), then wait()")
    return {"complete while one is missing": before, "complete after wait()": after}


# %%
if __name__ == "__main__":
    run(barrier_in_the_background)

# %% [markdown]
# ### It holds back its group only
#
# The even ranks and the odd ranks have a group each. In the first turn the even ranks pass their barrier, while the odd ones wait
# for a message from them; in the second turn it is the other way round. Nobody is held back by those who did not come.


# %%
@needs(ranks=2)
def barrier_of_a_group(rank, world_size, device):
    groups = [dist.new_group(list(range(first, world_size, 2))) for first in (0, 1)]  # every rank makes both
    passed = []
    for turn, group in enumerate(groups):
        count = torch.zeros(1, dtype=torch.int64, device=device)
        if rank % 2 == turn:
            dist.barrier(group=group)
            count += 1
        dist.all_reduce(count)  # the other half is here already
        passed.append(count.item())

    check(passed, [(world_size + 1) // 2, world_size // 2], "barrier(group=...)")
    return {"even ranks passed": passed[0], "odd ranks passed": passed[1]}


# %%
if __name__ == "__main__":
    run(barrier_of_a_group)

# %% [markdown]
# ### It does not wait for other work
#
# Here all ranks but the last start an all_reduce in a second group. Then there is a barrier of the world. Only after that does the
# last rank start the all_reduce, too.


# %%
@needs(ranks=2)
def work_in_another_group(rank, world_size, device):
    second = dist.new_group()
    for group in (None, second):
        dist.barrier(group=group)
    x = torch.tensor([rank + 1, 10 * rank], device=device)
    last = world_size - 1
    still_open = None
    if rank != last:
        work = dist.all_reduce(x, group=second, async_op=True)

    dist.barrier()
    if rank != last:
        still_open = not work.is_completed()
        check(still_open, True, "all_reduce in another group, after a barrier")
    dist.barrier()  # all have looked

    if rank == last:
        work = dist.all_reduce(x, group=second, async_op=True)
    work.wait()
    total = world_size * last // 2
    check(x, torch.tensor([total + world_size, 10 * total]), "all_reduce(SUM) in another group, after wait()")
    return {"open after the barrier": still_open, "sum after wait()": x}


# %% [markdown]
# **Predict first.** All ranks have left the barrier. Is the all_reduce that they started before it complete?

# %%
if __name__ == "__main__":
    run(work_in_another_group)

# %% [markdown]
# **Why.** A barrier orders the ranks, not what they have started: the last rank has not begun. Only `wait()` on the work itself
# says that it is done. (Work of its *own* group is another matter: on gloo a barrier ends after the collectives that were started
# before it in the same group. Do not build on that, and it does not hold for `isend` and `irecv`.)

# %% [markdown]
# ### Who is missing?
#
# A barrier that waits for a rank that never comes tells nothing but that time is up. `monitored_barrier` tells who: every rank
# reports to rank 0, which names those it has not heard from. Only gloo has it, but a gloo group can be made beside any other. Here
# the odd ranks stay away from one. With `wait_all_ranks=True` all missing ranks are named, not only the first. (gloo also writes
# the error on stderr, as it should. The group is broken afterwards; the world is not.)


# %%
@needs(ranks=2)
def monitored_barrier(rank, world_size, device):
    group = dist.new_group(backend="gloo")  # of all ranks
    dist.monitored_barrier(group=group)  # all come, and it lets them pass

    missing = list(range(1, world_size, 2))
    outcome = "stayed away"
    if rank not in missing:
        try:
            dist.monitored_barrier(group=group, timeout=timedelta(seconds=1), wait_all_ranks=True)
            outcome = "passed"
        except RuntimeError as error:
            named = re.search(r"Ranks? ([\d, ]+) failed", str(error))
            outcome = f"missing: {named[1]}" if named else "look at rank 0"

    expected = "stayed away" if rank in missing else "look at rank 0" if rank else "missing: " + ", ".join(map(str, missing))
    check(outcome, expected, "monitored_barrier(wait_all_ranks=True)")
    x = torch.tensor([rank, 1], device=device)
    dist.all_reduce(x)  # the world has taken no harm
    check(x, torch.tensor([world_size * (world_size - 1) // 2, world_size]), "all_reduce(SUM) after monitored_barrier")
    return {"monitored_barrier": outcome, "sum over the world": x}


# %% [markdown]
# **Predict first.** Ranks 0 and 2 come, 1 and 3 do not. Does rank 2 learn who is missing?

# %%
if __name__ == "__main__":
    run(monitored_barrier)

# %% [markdown]
# **Why.** Only rank 0 knows. The others have reported to it and wait for its word; when that does not come, all they can say is:
# look there. In the logs of a large job, read rank 0's.

# %%
STEPS = [
    barrier,
    barrier_flushes_nothing,
    barrier_in_the_background,
    barrier_of_a_group,
    work_in_another_group,
    monitored_barrier,
]

# %% [markdown]
# ## The proof
#
# In the first step every rank is the late one once, by a tenth of a second: a barrier that lets anyone through early is seen by
# all who look in that time. The steps after it need no clock (but for the limit of `monitored_barrier`). What they ask for cannot
# have happened yet, because the rank that would do it does so only after the question; or it must have happened, because what was
# received depends on it.

# %% [markdown]
# ## The cost
#
# No data, but time: everybody waits for the slowest. On gloo messages without content go round in log2(n) rounds (rounded up), in
# round k = 0, 1, ... to the rank 2**k further on. On NCCL a barrier is an all_reduce of one element, and the host waits for it.
# `monitored_barrier` takes 2 (n - 1) messages, all from or to rank 0: for a check at the start, not for every iteration.
#
# Bus-bandwidth factor: none, no data moves.

# %% [markdown]
# ## Pitfalls
#
# - Every rank of the group must come. A barrier inside `if rank == 0:` waits for ranks that never will.
# - It is seldom needed. A collective already makes each rank wait for the data that it needs; what needs a barrier is what
#   `torch.distributed` does not see: files, sockets, clocks.
# - With `TORCH_DISTRIBUTED_DEBUG=DETAIL` every collective, also with `async_op=True`, first waits for all ranks of its group.
#   Steps here that go on while a rank is missing hang then.
# - It is no cure for a race on the GPU. A barrier on gloo knows nothing of kernels. On NCCL the host waits for the current
#   stream, and not for others.
# - `monitored_barrier` numbers the ranks within its group: "rank 0" in its messages is the first of the group. If that one is
#   missing, the others cannot say who it is.

# %% [markdown]
# ## Where it is used
#
# Rank 0 downloads a data set or writes a checkpoint, and the others wait before they read it. Before and after a timed region, so
# that all ranks measure the same thing. `monitored_barrier` after start-up, to name the machine that did not make it.

# %% [markdown]
# ## Change and try
#
# Each of these is one change in one cell: make it, run that cell and the one after it, and undo it.
#
# 1. In `barrier`, change `dist.barrier()` to `pass`. Who is not found? It says `rank 0 is late`: the others looked before it had
#    left anything.
# 2. In `barrier_flushes_nothing`, change `file.write(f"written by rank {rank}")` to
#    `print(f"written by rank {rank}", file=file, flush=True)`. Now the line is in the file before the barrier, and the first proof
#    of this step no longer holds. It says `[barrier without a flush, gloo]`.
# 3. In `monitored_barrier`, change `timeout=timedelta(seconds=1), wait_all_ranks=True` to `timeout=timedelta(seconds=1)`. Two ranks
#    are missing. How many are named? It says `got 'missing: 1', should be 'missing: 1, 3'`.

# %% [markdown]
# ## Read on
#
# In PyTorch's documentation:
#
# - [`barrier`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.barrier)
# - [`monitored_barrier`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.monitored_barrier)
# - [`broadcast_object_list`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.broadcast_object_list)
# - [`new_group`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.new_group)
# - [`all_reduce`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_reduce)
#
# Next lesson: [new_group](../notebooks/new_group.ipynb), how to make the groups that were used here.
