# %% [markdown]
"""
# barrier

Rank 0 downloads a data set, and the others must not read it before it is complete:
`torch.distributed` does not see files, so you must say who waits. No rank leaves `barrier` before
every rank has come to it.

You will see that nobody leaves early, however late the last rank is; what a barrier does for a
file; a barrier in a group; and a barrier that names the ranks that did not come.

    python lessons/barrier.py
    torchrun --nproc-per-node 4 lessons/barrier.py
"""

# %%
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
# ## The call
#
# `barrier` takes no tensor and returns nothing. Here each rank comes a tenth of a second after the
# one before it, and writes down when it came and when it left. The ranks of one machine read the
# same clock, so afterwards they can compare: who had come when this rank left?


# %%
def barrier(rank, world_size, device):
    time.sleep(0.1 * rank)
    came = time.monotonic()
    dist.barrier()
    left = time.monotonic()
    # proof
    arrivals = [None] * world_size
    dist.all_gather_object(arrivals, came)
    there = [other for other, arrival in enumerate(arrivals) if arrival <= left]
    check(there, list(range(world_size)), "barrier")
    return {"late by": f"{rank / 10} s", "had come when it left": there}


# %%
if __name__ == "__main__":
    run(barrier)

# %% [markdown]
# Four ranks print this:
#
# | rank | late by | had come when it left |
# |---|---|---|
# | 0 | 0.0 s | [0, 1, 2, 3] |
# | 1 | 0.1 s | [0, 1, 2, 3] |
# | 2 | 0.2 s | [0, 1, 2, 3] |
# | 3 | 0.3 s | [0, 1, 2, 3] |
#
# Without the barrier rank 0 would leave first, and find itself alone: [0]. In the picture a dotted
# line joins the four barriers: nobody goes on before the last one has come. (The second call
# belongs to the proof.)

# %% [markdown]
# ### A line in a file
#
# A barrier orders what has been done. Here every rank writes a line into a file of its own, without
# closing it. After the barrier it reads the file of the rank on its left.


# %%
def barrier_and_a_file(rank, world_size, device):
    with tempfile.NamedTemporaryFile("w") as file:
        names = [None] * world_size
        dist.all_gather_object(names, file.name)
        neighbour = Path(names[rank - 1])

        file.write(f"written by rank {rank}")
        dist.barrier()
        early = neighbour.read_text()
        dist.barrier()  # all have looked
        file.flush()
        dist.barrier()
        late = neighbour.read_text()
        dist.barrier()  # all have looked again, and the files may go
    # proof
    expected = ["", f"written by rank {(rank - 1) % world_size}"]
    check([early, late], expected, "barrier without and with a flush")
    return {"characters found": len(early), "after a flush": late}


# %% [markdown]
# **Predict first.** Each of the lines has 17 characters, and every rank has called `write` before
# any rank leaves the first barrier. How many characters does a rank find in its neighbour's file?
# Write the number down.

# %%
if __name__ == "__main__":
    run(barrier_and_a_file)

# %% [markdown]
# <details><summary>Answer</summary>
#
# None. A line in Python's buffer is not in the file yet. `print` does the same: into a pipe or a
# file Python buffers it (unless started with `-u`, as torchrun does), so lines come out late and
# [in any order](../notebooks/mistakes/data.ipynb), whatever barriers stand between them. This is
# why the ranks of these lessons return their results, and one process prints them.
#
# </details>

# %% [markdown]
# ### A barrier in a group
#
# The first three ranks have a group of their own, and a barrier in it. The last rank is not in the
# group. It goes straight to the `all_reduce` of the world, and waits there.


# %%
@needs(ranks=2)
def barrier_of_a_group(rank, world_size, device):
    group = dist.new_group(list(range(world_size - 1)))  # all but the last
    passed = torch.tensor([0], device=device)
    if rank < world_size - 1:
        dist.barrier(group=group)
        passed += 1
    dist.all_reduce(passed, op=dist.ReduceOp.SUM)
    # proof
    check(passed, torch.tensor([world_size - 1]), "barrier(group=...)")
    return {"in the group": rank < world_size - 1, "have passed": passed}


# %% [markdown]
# **Predict first.** Four ranks run this. What does rank 3 return for `have passed`? Write the
# number down.

# %%
if __name__ == "__main__":
    run(barrier_of_a_group)

# %% [markdown]
# <details><summary>Answer</summary>
#
# It returns 3: only the ranks of the group wait, so the three pass without rank 3. In the picture
# the first dotted line joins the barriers of ranks 0, 1 and 2. The bar of rank 3 is long: it waits
# in `all_reduce` until the others have come there.
#
# </details>

# %% [markdown]
# ### Who is missing?
#
# If a rank never comes, a barrier tells you only that time is up. `monitored_barrier` tells you
# who: with `wait_all_ranks=True` all the missing ranks, else the first. Only gloo has it, but you
# can make a gloo group beside any other. Here the odd ranks stay away. (gloo also prints the error
# to stderr; that is expected. This group is broken afterwards, and the world is not.)


# %%
@needs(ranks=2)
def monitored_barrier(rank, world_size, device):
    group = dist.new_group(backend="gloo")  # of all ranks
    dist.monitored_barrier(group=group)  # all come, and it lets them pass
    heard = "stayed away"
    if rank % 2 == 0:
        try:
            dist.monitored_barrier(group=group, timeout=timedelta(seconds=1), wait_all_ranks=True)
            heard = "passed"
        except RuntimeError as error:
            named = re.search(r"Ranks? ([\d, ]+) failed", str(error))
            heard = f"missing: {named[1]}" if named else "look at rank 0"
    x = torch.tensor([rank + 1, 1], device=device)
    dist.all_reduce(x, op=dist.ReduceOp.SUM)  # the world has taken no harm
    # proof
    expected = ["look at rank 0", "stayed away"][rank % 2]
    if rank == 0:
        expected = f"missing: {', '.join(map(str, range(1, world_size, 2)))}"
    check(heard, expected, "monitored_barrier(wait_all_ranks=True)")
    total = torch.tensor([world_size * (world_size + 1) // 2, world_size])
    check(x, total, "all_reduce(SUM) after monitored_barrier")
    return {"heard": heard, "sum over the world": x}


# %% [markdown]
# **Predict first.** Ranks 0 and 2 come, ranks 1 and 3 do not. How many ranks read the numbers 1 and
# 3 in their error? Write down how many.

# %%
if __name__ == "__main__":
    run(monitored_barrier)

# %% [markdown]
# <details><summary>Answer</summary>
#
# One: rank 0. Every rank reports to rank 0, which names those that it has not heard from. Rank 2
# has reported and waits for an answer. When none comes, all it can say is: look at rank 0. So in
# the logs of a large job, read those of rank 0.
#
# </details>

# %%
STEPS = [barrier, barrier_and_a_file, barrier_of_a_group, monitored_barrier]

# %% [markdown]
# ## The cost
#
# No data, but time: everybody waits for the slowest. On gloo, empty messages go round in log2(n)
# rounds (rounded up): in round k = 0, 1, ... to the rank 2**k further on. On NCCL a barrier is an
# all_reduce of one element, and the host waits for it (documented). In `monitored_barrier` rank 0
# exchanges two messages with each other rank: good for a check at the start, not for every
# iteration.
#
# Bus-bandwidth factor: none, no data moves.

# %% [markdown]
# ## Pitfalls
#
# - Every rank of the group must come. A barrier inside `if rank == 0:` waits for ranks that [never
#   will](../notebooks/mistakes/order.ipynb).
# - It is seldom needed. A collective already makes each rank wait for the data that it needs. What
#   needs a barrier is what `torch.distributed` does not see: files, sockets, clocks.
# - A barrier orders the ranks, not what they have started in the background. Only `wait()` on a
#   `Work` says that it is done.
# - On NCCL a barrier runs on the current GPU, which is GPU 0 on every rank that has not chosen one:
#   the job may hang (documented). Call `torch.cuda.set_device` before it, or pass
#   `device_ids=[local_rank]`.
# - A barrier is not enough to time work on a GPU, because kernels may still be running when the
#   rank reads the clock: call `torch.cuda.synchronize()` first (documented).
# - `monitored_barrier` numbers the ranks within its group: "rank 0" in its messages is the first of
#   the group. If that one is missing, nobody names the missing ranks.
# - With `TORCH_DISTRIBUTED_DEBUG=DETAIL` every collective, also with `async_op=True`, first waits
#   for all ranks of its group.

# %% [markdown]
# ## Where it is used
#
# Rank 0 downloads a data set or writes a checkpoint, and the others wait before they read it.
# Before and after a timed region, so that all ranks measure the same thing. `monitored_barrier`
# after start-up names the machine that did not make it.

# %% [markdown]
# ## Change and try
#
# Each of these is one change in one cell. Make it, run that cell and the one after it, and undo it.
#
# 1. In `barrier`, change `dist.barrier()` to `pass`. Who had come when rank 2 left?
#
#    <details><summary>Answer</summary>
#
#    You get `should be [0, 1, 2, 3]`. Each rank finds those that came before it, and itself: rank 2
#    finds [0, 1, 2].
#
#    </details>
#
# 2. In `barrier_and_a_file`, change `file.write(f"written by rank {rank}")` to
#    `print(f"written by rank {rank}", file=file, flush=True)`. Is the line in the file before the
#    first barrier?
#
#    <details><summary>Answer</summary>
#
#    You get `[barrier without and with a flush, gloo]`. It is: the neighbour found it, where the
#    proof expects nothing.
#
#    </details>
#
# 3. In `monitored_barrier`, change `timeout=timedelta(seconds=1), wait_all_ranks=True` to
#    `timeout=timedelta(seconds=1)`. Two ranks are missing. How many are named?
#
#    <details><summary>Answer</summary>
#
#    You get `got 'missing: 1', should be 'missing: 1, 3'`. Rank 0 gives up at the first rank that
#    does not report.
#
#    </details>

# %% [markdown]
# ## Write it yourself
#
# Write `my_barrier()` with `send` and `recv`: rank 0 hears from every other rank, and then tells
# every other rank to go on. (Or in one line with `all_reduce`: why does that hold everybody back?)
#
# <details><summary>One way to write it</summary>
#
# ```python
# import time
#
#
# def my_barrier():
#     token, others = torch.ones(1), range(1, dist.get_world_size())
#     if dist.get_rank() > 0:
#         dist.send(token, dst=0)
#         dist.recv(token, src=0)
#         return
#     for other in others:
#         dist.recv(token, src=other)
#     for other in others:
#         dist.send(token, dst=other)
#
#
# def try_my_barrier(rank, world_size, device):
#     time.sleep(0.1 * rank)
#     came = time.monotonic()
#     my_barrier()
#     left = time.monotonic()
#     arrivals = [None] * world_size
#     dist.all_gather_object(arrivals, came)
#     check(max(arrivals) <= left, True, "my_barrier")
#     return {"all had come": True}
# ```
#
# </details>

# %% [markdown]
# ## Read on
#
# - D. Hensgen, R. Finkel and U. Manber, *Two algorithms for barrier synchronization* (1988): the
#   rounds in which gloo's barrier goes.
#
# In PyTorch's documentation:
#
# - [`barrier`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.barrier)
# - [`monitored_barrier`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.monitored_barrier)
# - [`new_group`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.new_group)
# - [`all_reduce`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_reduce)
# - [`all_gather_object`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_gather_object)
# - [`send`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.send)
# - [`recv`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.recv)
# - [`get_rank`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.get_rank)
# - [`get_world_size`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.get_world_size)
#
# This was the last call. Now train with them: the chapter
# [training](../notebooks/training/one_process.ipynb) begins with one process. The
# [README](../README.md) says what else there is: mistakes to look at, your own functions on ranks,
# and what works on which backend.
