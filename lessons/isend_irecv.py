# %% [markdown]
"""
# isend_irecv: point-to-point communication without waiting

`isend` and `irecv` start a send and a receive and return immediately, each with a `Work`.

With `send` and `recv` a rank stands still until the other rank comes, although it often has work
that does not need the message. At the end of this lesson you can compute while messages travel, and
let all ranks exchange data at once without a deadlock.

    python lessons/isend_irecv.py
    torchrun --nproc-per-node 4 lessons/isend_irecv.py
"""

# %%
from collectives import check, needs, note_calls, run, span
import torch
import torch.distributed as dist

# %% [markdown]
# ## The call
#
# ```python
# dist.isend(tensor, dst=None, group=None, tag=0, group_dst=None)
# dist.irecv(tensor, src=None, group=None, tag=0, group_src=None)
# ```
#
# | argument | meaning |
# |---|---|
# | `tensor` | what is sent, or what is filled |
# | `dst`, `src` | the other rank, in the whole job; `irecv` without `src`: any rank |
# | `group` | one that both ranks are in; None is all ranks |
# | `tag` | a number on the message: a receive on gloo takes only its own |
# | `group_dst`, `group_src` | the other rank in the group, in place of `dst` or `src` |
#
# Start the receives first, keep every `Work`, and call `wait()` on each, because a message is
# complete only when its `wait()` has returned. Until then, leave the tensors alone. (On NCCL, start
# all of them [in one batch](#A-ring).) Here every [rank](../docs/glossary.md#rank) sends to the
# rank on its right.


# %%
@needs(ranks=2)
def isend_irecv(rank, world_size, device):
    calls = note_calls()  # what this rank calls from here on
    x, received = torch.tensor([10 * rank + 1], device=device), torch.tensor([-1], device=device)
    receiving = dist.irecv(received, src=(rank - 1) % world_size)
    sending = dist.isend(x, dst=(rank + 1) % world_size)
    receiving.wait()
    sending.wait()
    # proof
    check(
        received, torch.tensor([10 * ((rank - 1) % world_size) + 1]), "isend, irecv around a ring"
    )
    check([call.name for call in calls][:2], ["irecv", "isend"], "both start before the first wait")
    return {"x": x, "received": received}


# %%
if __name__ == "__main__":
    run(isend_irecv)

# %% [markdown]
# Four ranks print this:
#
# | rank | x | received |
# |---|---|---|
# | 0 | [1] | [31] |
# | 1 | [11] | [1] |
# | 2 | [21] | [11] |
# | 3 | [31] | [21] |
#
# With [send and recv](../notebooks/send_recv.ipynb) one rank of this circle must receive first.
# Here none has to: in the picture all four messages travel at the same time.

# %% [markdown]
# ### Compute while messages travel
#
# Each rank has three numbers of a long row, and needs the difference between each number and the
# one before it. Two differences need no other rank. The first one needs the last number of the left
# neighbour, the [halo](../docs/glossary.md#halo); rank 0 takes 0. So a rank starts its messages,
# computes two differences, and only then waits.

# %% [markdown]
# **Predict first.** Rank 0 has 1, 2 and 3, and rank r has 10 r more in each place. Which three
# differences does rank 2 get?


# %%
@needs(ranks=2)
def overlap(rank, world_size, device):
    calls = note_calls()  # what this rank calls from here on
    own = torch.arange(10 * rank + 1, 10 * rank + 4, device=device)
    halo = torch.tensor([0], device=device)
    works = [dist.irecv(halo, src=rank - 1)] if rank > 0 else []
    if rank < world_size - 1:
        works.append(dist.isend(own[-1:], dst=rank + 1))
    with span("two differences"):  # drawn as a bar
        inner = own.diff()  # reads what is being sent, and writes nothing
    for work in works:
        work.wait()
    with span("the first one"):
        first = own[:1] - halo
    differences = torch.cat([first, inner])
    # proof: one process has the whole row
    row = torch.tensor([0] + [10 * r + k for r in range(world_size) for k in (1, 2, 3)])
    check(differences, row.diff()[3 * rank : 3 * rank + 3], "isend, irecv of a halo")
    starts = ["irecv"] * (rank > 0) + ["isend"] * (rank < world_size - 1)
    expected = [*starts, "span", *["wait" for work in works], "span"]
    check([call.name for call in calls], expected, "two differences between start and wait")
    return {"own": own, "halo": halo, "differences": differences}


# %%
if __name__ == "__main__":
    run(overlap, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 8, 1 and 1: its first number is 21, and its halo is 13, the last number of rank 1. In the picture
# a thin bar below "two differences" shows that the messages travel meanwhile, from their start to
# the `wait`.
#
# </details>

# %% [markdown]
# ### Tags
#
# If several messages are on the way between two ranks, which one does a `recv` get? With the same
# [tag](../docs/glossary.md#tag) they arrive in the order in which they were sent, but with
# different tags the receiver can choose. Rank 0 must use `isend` for this, because a `send` of the
# first message would wait for a `recv` that rank 1 calls only after the second.

# %% [markdown]
# **Predict first.** Rank 0 starts a message with the number 1 and tag 1, and then one with the
# number 2 and tag 2. Rank 1 calls `recv` with tag 2, and then with tag 1. Which number does its
# first call return?


# %%
@needs(ranks=2)
def tags(rank, world_size, device):
    calls = note_calls()  # what this rank calls from here on
    weight, bias = torch.tensor([1], device=device), torch.tensor([2], device=device)
    first, second = torch.full_like(bias, -1), torch.full_like(weight, -1)
    if rank == 0:
        works = [dist.isend(weight, dst=1, tag=1), dist.isend(bias, dst=1, tag=2)]
        for work in works:
            work.wait()
    if rank == 1:
        dist.recv(first, src=0, tag=2)
        dist.recv(second, src=0, tag=1)
    # proof
    expected = [bias.item(), weight.item()] if rank == 1 else [-1, -1]
    check([first.item(), second.item()], expected, "recv(tag=...)")
    started = [call.tag for call in calls if call.name == "isend"]
    check(started, [1, 2] if rank == 0 else [], "the tags in the order in which rank 0 starts")
    return {"first": first, "second": second}


# %%
if __name__ == "__main__":
    run(tags, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# It is 2, because rank 1 asks for tag 2 first.
#
# </details>

# %% [markdown]
# ### A ring
#
# `batch_isend_irecv` starts a list of sends and receives together, in any order. Here blocks go
# round a [ring](../docs/glossary.md#ring): in each of n - 1 hops a rank passes on the block that it
# got in the hop before.

# %% [markdown]
# **Predict first.** Four ranks begin with the blocks 1, 11, 21 and 31, and each sends to the rank
# on its right. In which order does rank 2 see the four blocks?


# %%
@needs(ranks=2)
def ring_exchange(rank, world_size, device):
    calls = note_calls()  # what this rank calls from here on
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    block = torch.tensor([10 * rank + 1], device=device)
    seen = [block]
    for _ in range(world_size - 1):
        arriving = torch.full_like(block, -1)
        send = dist.P2POp(dist.isend, block, right)
        receive = dist.P2POp(dist.irecv, arriving, left)
        for work in dist.batch_isend_irecv([send, receive]):
            work.wait()
        block = arriving
        seen.append(block)
    # proof: after k hops a rank has the block of the rank k places to its left
    expected = [10 * ((rank - hop) % world_size) + 1 for hop in range(world_size)]
    check(torch.cat(seen), torch.tensor(expected), "batch_isend_irecv around a ring")
    peers = [call.peer for call in calls if call.name == "isend"]
    check(peers, [right] * (world_size - 1), "each hop to the right neighbour")
    return {"seen": torch.cat(seen)}


# %%
if __name__ == "__main__":
    run(ring_exchange, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 21, 11, 1, 31: first its own block, then those of ranks 1, 0 and 3, because the blocks come from
# the left.
#
# </details>

# %% [markdown]
# ### Errors come at `wait()`
#
# A call that returns at once cannot raise what happens later. So if a message fails, `wait()`
# raises the error, and the same holds for a collective with `async_op=True`. This one fails on
# gloo, which cannot average integers.


# %%
@needs(ranks=2)
def error_at_wait(rank, world_size, device):
    x = torch.tensor([10**rank], device=device)
    average, events = x.clone(), []
    try:
        work = dist.all_reduce(average, op=dist.ReduceOp.AVG, async_op=True)
        events.append("started")
        work.wait()
        events.append("done")
    except (RuntimeError, ValueError):
        events.append("error")
    dist.all_reduce(x, op=dist.ReduceOp.SUM)  # the group still works
    # proof: other backends have the reduction, or refuse it in the call itself
    if dist.get_backend() == "gloo":
        check(events, ["started", "error"], "all_reduce(AVG, async_op=True) of integers")
    check(x, torch.tensor([(10**world_size - 1) // 9]), "all_reduce(SUM) afterwards")
    return {"events": events, "sum": x}


# %%
if __name__ == "__main__":
    run(error_at_wait)

# %% [markdown]
# A `Work` that nobody waits for hides its error, for example that the other rank of a message [has
# died](../notebooks/mistakes/processes.ipynb).

# %%
STEPS = [isend_irecv, overlap, tags, ring_exchange, error_at_wait]

# %% [markdown]
# ## The cost
#
# S bytes cross one link, as with `send` and `recv`. The transfer can run while the rank computes,
# but gloo needs CPU threads for it.
#
# An open message holds its tensor, even if nobody else does, and `wait()` does not free it: 8
# messages of 64 MiB made each rank 512 MiB larger until the list of their `Work`s was gone (`python
# benchmarks/lesson_costs.py`). So do not open too many, and drop each `Work` after its `wait()`.
#
# Many open messages save time. Of 1,000 messages of 4 bytes between two ranks, on two cores,
# `wait()` after each took 3.6 to 4 times as long as starting all of them before the first `wait()`,
# in five runs (`python benchmarks/lesson_costs.py`). What a ring gains:
# [ring](../notebooks/algorithms/ring.ipynb).

# %% [markdown]
# ## Pitfalls
#
# - Until `wait()` returns, do not [write to what is being
#   sent](../notebooks/mistakes/buffers.ipynb), nor read or write what is being received.
# - Keep every `Work`. On gloo, if you drop a `Work`, its message is silently cancelled, so the
#   other rank waits in vain, or the buffer is never filled.
# - On gloo `is_completed()` of a send or a receive is False until `wait()`, so do not poll.
# - `isend(...).wait()` before the receive is the [deadlock of
#   `send`](../notebooks/mistakes/messages.ipynb) again.

# %% [markdown]
# ## On GPUs
#
# - On NCCL the first message between two ranks connects them and needs both ([NCCL, issue
#   783](https://github.com/NVIDIA/nccl/issues/783)). The issue is about what "nccl" means up to
#   torch 2.14: [Which NCCL?](../docs/which-nccl.md)
# - With `init_process_group(device_id=...)` all ranks are connected before that
#   (`torch/distributed/distributed_c10d.py`: "the communicator is immediately formed").
# - Either way, single sends and receives in both directions can hang. Start them as [one
#   group](https://github.com/NVIDIA/nccl/issues/479), which `batch_isend_irecv` does.

# %% [markdown]
# ## Where it is used
#
# Pipeline parallelism sends one [micro-batch](../docs/glossary.md#micro-batch) while it computes
# the next. Ring attention sends a block of keys and values on while it computes on it. Convolutions
# that are cut over ranks exchange halos.

# %% [markdown]
# ## Change and try
#
# Make one change, run its cell and the next one, and undo it.
#
# 1. In `overlap`, change `own[-1:]` to `own[:1]`. Every rank now sends its first number. Which
#    differences of rank 2 are wrong?
#
#    <details><summary>Answer</summary>
#
#    Only the first. You get `rank 1/4: got [10, 1, 1], should be [8, 1, 1] [isend, irecv of a halo,
#    int64[3], gloo]`, and the same of ranks 2 and 3. Rank 0 passes, because it has no halo.
#
#    </details>
#
# 2. In `ring_exchange`, change `block = arriving` to `pass`. Now a rank passes on its own block,
#    again and again. What does rank 0 see?
#
#    <details><summary>Answer</summary>
#
#    You get `rank 0/4: got [1, 1, 1, 1], should be [1, 31, 21, 11] [batch_isend_irecv around a
#    ring, int64[4], gloo]`.
#
#    </details>

# %% [markdown]
# ## Write it yourself
#
# In your folder of [exercises](../README.md#exercises):
#
# ```sh
# collectives practice shift_right
# collectives practice all_reduce_as_a_ring
# ```

# %% [markdown]
# ## Read on
#
# - H. Liu, M. Zaharia and P. Abbeel, [*Ring Attention with Blockwise Transformers for Near-Infinite
#   Context*](https://arxiv.org/abs/2310.01889) (2023): a ring that computes while its blocks
#   travel.
#
# In PyTorch's documentation:
#
# - [`isend`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.isend)
# - [`irecv`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.irecv)
# - [`recv`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.recv)
# - [`P2POp`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.P2POp)
# - [`batch_isend_irecv`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.batch_isend_irecv)
# - [`all_reduce`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_reduce)
# - [`get_backend`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.get_backend)
#
# So far every collective has needed all ranks. Next lesson:
# [new_group](../notebooks/new_group.ipynb), collectives among some of them.
