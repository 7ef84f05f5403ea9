# %% [markdown]
"""
# barrier: wait until every rank has come

No rank returns from `barrier` before every rank has called it.

Rank 0 downloads a data set, and the other ranks must not read it before it is complete. No tensor
travels between them that they could wait for, because `torch.distributed` does not see files. At
the end of this lesson you can make ranks wait for each other, you know what a barrier does not wait
for, and you can find out which rank is missing.

    python lessons/barrier.py
    torchrun --nproc-per-node 4 lessons/barrier.py
"""

# %%
from datetime import timedelta
from pathlib import Path
import re
import tempfile
import time
from collectives import check, needs, note_calls, run, span
import torch
import torch.distributed as dist

# %% [markdown]
# ## The call
#
# ```python
# dist.barrier(group=None, async_op=False, device_ids=None, timeout=None)
# ```
#
# | argument | meaning |
# |---|---|
# | `group` | the ranks that wait for each other; None is all of them |
# | `async_op` | True: return a [`Work`](../docs/glossary.md#work) at once |
# | `device_ids` | on NCCL, a list with the GPU of this rank |
# | `timeout` | how long to wait, in place of the group's limit; since torch 2.12 |
#
# `barrier` takes no tensor and returns nothing, so only the time shows its effect. Here
# [rank](../docs/glossary.md#rank) r works r tenths of a second before it calls `barrier`. Each rank
# reads the clock, which is the same on the whole machine, before and after the call: who had called
# when this rank returned?


# %%
def barrier(rank, world_size, device):
    calls, begun = note_calls(), time.monotonic()
    for _ in range(rank):
        with span("0.1 s of work"):  # drawn as a bar
            time.sleep(0.1)
    called = time.monotonic()
    dist.barrier()
    returned = time.monotonic()
    # proof: it worked, and it was the call that waited
    check([call.name for call in calls], [*["span"] * rank, "barrier"], "work and a barrier")
    check(called - begun >= rank / 10, True, "rank r calls r tenths of a second late")
    all_called = [None] * world_size
    dist.all_gather_object(all_called, called)
    who = [other for other, at in enumerate(all_called) if at <= returned]
    check(who, list(range(world_size)), "barrier")
    return {"late by": f"{rank / 10} s", "had called": who}


# %%
if __name__ == "__main__":
    run(barrier)

# %% [markdown]
# Four ranks print this:
#
# | rank | late by | had called |
# |---|---|---|
# | 0 | 0.0 s | [0, 1, 2, 3] |
# | 1 | 0.1 s | [0, 1, 2, 3] |
# | 2 | 0.2 s | [0, 1, 2, 3] |
# | 3 | 0.3 s | [0, 1, 2, 3] |
#
# In the picture the `barrier` of rank 0 is long, because it waits until rank 3 has done its work.

# %% [markdown]
# ### A line in a file
#
# After a barrier, everything that the ranks did before it is done. But can the other ranks see it?
# Here rank r writes `written by rank r` into a file of its own, and after the barrier it reads the
# file of its left neighbour.

# %% [markdown]
# **Predict first.** Rank 0 reads the file of rank 3, once after `write` and a barrier, once after
# `flush` and a barrier. What does it find each time?


# %%
def barrier_and_a_file(rank, world_size, device):
    calls = note_calls()  # what this rank calls from here on
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
    check([call.name for call in calls][1:], ["barrier"] * 4, "before and after each look")
    return {"after write": repr(early), "after flush": repr(late)}


# %%
if __name__ == "__main__":
    run(barrier_and_a_file, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# `''`, which is nothing, and then `'written by rank 3'`. Python keeps a written line in its own
# buffer until `flush`, and the barrier knows nothing of this buffer. `print` into a pipe or a file
# does the same, so lines come out [in any order](../notebooks/mistakes/data.ipynb), whatever
# barriers are between them.
#
# </details>

# %% [markdown]
# ### A barrier in a group
#
# Sometimes only a few ranks must wait for each other. Here all ranks but the last have a
# [group](../docs/glossary.md#group) of their own, and a barrier in it. Afterwards an `all_reduce`
# counts how many have passed the barrier.

# %% [markdown]
# **Predict first.** With four ranks, rank 3 does not call the barrier and goes on to the
# `all_reduce`. Do the other three pass the barrier, and how many does the `all_reduce` count on
# rank 3?


# %%
@needs(ranks=2)
def barrier_of_a_group(rank, world_size, device):
    calls = note_calls()  # what this rank calls from here on
    group = dist.new_group(list(range(world_size - 1)))  # all but the last
    passed = torch.tensor([0], device=device)
    if rank < world_size - 1:
        dist.barrier(group=group)
        passed += 1
    dist.all_reduce(passed, op=dist.ReduceOp.SUM)
    # proof
    check(passed, torch.tensor([world_size - 1]), "barrier(group=...)")
    waited_for = [call.members for call in calls if call.name == "barrier"]
    others = tuple(range(world_size - 1))
    check(waited_for, [others] if rank in others else [], "the members wait for each other only")
    return {"in the group": rank < world_size - 1, "have passed": passed}


# %%
if __name__ == "__main__":
    run(barrier_of_a_group, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# They pass it, and the `all_reduce` counts 3, because the members of the group wait for each other
# only. In the picture the first dotted line joins their barriers. The bar of rank 3 is long,
# because it waits for them in `all_reduce`.
#
# </details>

# %% [markdown]
# ### Who is missing?
#
# If a rank never calls `barrier`, all other ranks learn at the time limit that time is up, and
# nothing else. `monitored_barrier` names the rank: with `wait_all_ranks=True` all missing ranks,
# otherwise the first. Only gloo has it, but you can make a gloo group beside any other. Here the
# odd ranks do not call it. (gloo also prints the error to stderr. This group is broken afterwards,
# but the world is not.)

# %% [markdown]
# **Predict first.** Ranks 0 and 2 call it, ranks 1 and 3 do not. Which ranks read the numbers 1 and
# 3 in their error?


# %%
@needs(ranks=2)
def monitored_barrier(rank, world_size, device):
    group = dist.new_group(backend="gloo")  # of all ranks
    dist.monitored_barrier(group=group)  # all call it, and all pass
    heard = "did not call"
    if rank % 2 == 0:
        try:
            dist.monitored_barrier(group=group, timeout=timedelta(seconds=1), wait_all_ranks=True)
            heard = "passed"
        except RuntimeError as error:
            named = re.search(r"Ranks? ([\d, ]+) failed", str(error))
            heard = f"missing: {named[1]}" if named else "look at rank 0"
    x = torch.tensor([10**rank], device=device)
    dist.all_reduce(x, op=dist.ReduceOp.SUM)  # the world still works
    # proof
    expected = ["look at rank 0", "did not call"][rank % 2]
    if rank == 0:
        expected = f"missing: {', '.join(map(str, range(1, world_size, 2)))}"
    check(heard, expected, "monitored_barrier(wait_all_ranks=True)")
    check(x, torch.tensor([(10**world_size - 1) // 9]), "all_reduce(SUM) afterwards")
    return {"heard": heard, "sum": x}


# %%
if __name__ == "__main__":
    run(monitored_barrier, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Rank 0 alone. Every rank reports to rank 0, which names those that did not report. Rank 2 has
# reported and gets no answer, so it can name nobody. In the logs of a large job, read those of rank
# 0.
#
# </details>

# %%
STEPS = [barrier, barrier_and_a_file, barrier_of_a_group, monitored_barrier]

# %% [markdown]
# ## The cost
#
# A barrier moves no data, but it costs time, because all ranks wait for the slowest. On gloo, empty
# messages travel in log2(n) rounds (rounded up): in round k, to the rank 2**k places further on. In
# `monitored_barrier` rank 0 exchanges two messages with each other rank.
#
# With four ranks on two cores, `monitored_barrier` took 0.7 ms and `barrier` 1 ms (`python
# benchmarks/lesson_costs.py`). But with many ranks, the messages of rank 0 cost more than the
# rounds: [bruck](../notebooks/algorithms/bruck.ipynb).

# %% [markdown]
# ## Pitfalls
#
# - Every rank of the group must call `barrier`, so one inside `if rank == 0:` [waits for
#   ever](../notebooks/mistakes/order.ipynb).
# - You seldom need a barrier, because a collective makes each rank wait for the data that it needs.
#   Use one for what `torch.distributed` does not see: files, sockets, clocks.
# - A barrier does not wait for what a rank has started in the background. Only `wait()` on a `Work`
#   says that this is done.
# - With `TORCH_DISTRIBUTED_DEBUG=DETAIL` every collective first waits for all ranks of its group.

# %% [markdown]
# ## On GPUs
#
# - With NCCL the host waits until the barrier is done. (`torch/distributed/distributed_c10d.py`:
#   "blocks the cpu thread till the completion of the barrier collective")
# - Choose the GPU before the first barrier, by `torch.cuda.set_device` or
#   `device_ids=[local_rank]`. (`torch/distributed/distributed_c10d.py`: "may use default device 0,
#   causing issues like hang")

# %% [markdown]
# ## Where it is used
#
# Put a barrier before the other ranks read a data set or a checkpoint that rank 0 writes, and
# before and after a timed region, so that all ranks measure the same. On GPUs call
# `torch.cuda.synchronize()` before each reading of the clock, too
# ([faster](../notebooks/training/faster.ipynb)): a barrier alone lets the ranks begin together, and
# says nothing of work that the GPU still has to do. `monitored_barrier` after start-up names the
# machine that is missing.

# %% [markdown]
# ## Change and try
#
# Make one change, run its cell and the next one, and undo it.
#
# 1. In `barrier_of_a_group`, change `list(range(world_size - 1))` to `list(range(world_size))`. The
#    last rank is a member now, and still does not call the barrier. What happens?
#
#    <details><summary>Answer</summary>
#
#    It hangs. You get `-> circular wait: 0 -> 3 -> 0`: rank 0 waits for rank 3 in `barrier`, and
#    rank 3 for rank 0 in `all_reduce`.
#
#    </details>
#
# 2. In `monitored_barrier`, change `timeout=timedelta(seconds=1), wait_all_ranks=True` to
#    `timeout=timedelta(seconds=1)`. Two ranks are missing. How many are named?
#
#    <details><summary>Answer</summary>
#
#    You get `rank 0/4: got 'missing: 1', should be 'missing: 1, 3'
#    [monitored_barrier(wait_all_ranks=True), gloo]`. Rank 0 raises at the first rank that does not
#    report, so it never asks for rank 3.
#
#    </details>

# %% [markdown]
# ## Write it yourself
#
# In your folder of [exercises](../README.md#exercises):
#
# ```sh
# collectives practice one_after_another
# collectives practice barrier_by_dissemination
# ```

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
#
# These are all calls of this chapter. Next: the [chapters](../docs/contents.md) on training,
# algorithms and machines, which show what is built from them.
