# %% [markdown]
"""
# send_recv

One rank sends a tensor, one other rank receives it into a buffer of the same size and type; neither needs any third rank.

A **rank** is one process of the job, and its number, from 0; the **world size**, n below, is how many there are. A **group** is
some of the ranks, for calls among themselves. The **backend** is the library that moves the bytes: gloo (CPU), NCCL (GPU) or MPI.

You will see a message that goes from rank to rank and is changed on its way, the deadlock of ranks that all send first and the
order that avoids it, tags that tell messages apart, and a receive that takes what comes, whoever sent it.

    python lessons/send_recv.py
    torchrun --nproc-per-node 4 lessons/send_recv.py

To run it, clone the repository and type `make tour`; or, where you already have torch, `pip install -e '.[notebooks]'`.
"""

# %%
from datetime import timedelta
from collectives import check
from collectives.lesson import needs, run
import torch
import torch.distributed as dist

# %% [markdown]
# ## Worked numbers
#
# Four ranks in a chain. Rank 0 starts with 1; every rank after it writes its own digit, rank + 1, behind what it received, and
# passes that on. The digits tell the way that the message took.
#
# | rank | received | holds |
# |---|---|---|
# | 0 | - | [1] |
# | 1 | [1] | [12] |
# | 2 | [12] | [123] |
# | 3 | [123] | [1234] |

# %% [markdown]
# ## The code
#
# Every `send` needs a `recv` on the rank that it names. The receiver must know shape and dtype beforehand: only the bytes travel.
# `recv` fills its buffer and returns the rank of the sender.


# %%
@needs(ranks=2)
def send_recv(rank, world_size, device):
    received = None
    message = torch.tensor([1], device=device)
    if rank > 0:
        received = torch.full((1,), -1, device=device)  # -1: what comes overwrites it
        source = dist.recv(received, src=rank - 1)
        check(source, rank - 1, "recv(src=rank - 1)")
        message = 10 * received + rank + 1
    if rank < world_size - 1:
        dist.send(message, dst=rank + 1)

    trail = torch.arange(1, rank + 2) * 10 ** torch.arange(rank, -1, -1)  # the digits 1, 2, ..., rank + 1, each at its place
    check(message, trail.sum().reshape(1), "send, recv along a chain")
    return {"received": received, "holds": message}


# %%
if __name__ == "__main__":
    run(send_recv)

# %% [markdown]
# ### When all send first
#
# Now a ring: every rank has something for its right neighbour, and all of them send before they receive. Here that happens in a
# group of its own, with a time limit of one second. After the limit that group is broken for good; the world is not.
#
# Then the same once more in another order: even ranks send first, odd ranks receive first.


# %%
@needs(ranks=2)
def all_send_first(rank, world_size, device):
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    message = torch.tensor([rank, 10 * rank], device=device)
    received = torch.full_like(message, -1)

    before = message.clone()
    dist.all_reduce(before)  # subtle: meet first, because the time limit counts for making the group, too
    doomed = dist.new_group(timeout=timedelta(seconds=1))  # of all ranks
    try:
        dist.send(message, dst=right, group=doomed)
        dist.recv(received, src=left, group=doomed)
        outcome = "received"
    except RuntimeError:  # the time limit
        outcome = "stuck"
    check(outcome, "stuck", "send before recv on every rank")
    check(received, torch.tensor([-1, -1]), "send before recv on every rank")

    if rank % 2 == 0:
        dist.send(message, dst=right)
        dist.recv(received, src=left)
    else:
        dist.recv(received, src=left)
        dist.send(message, dst=right)
    check(received, torch.tensor([left, 10 * left]), "even ranks send first, odd ranks receive first")

    after = message.clone()
    dist.all_reduce(after)  # the world has taken no harm
    total = torch.tensor([1, 10]) * (world_size * (world_size - 1) // 2)
    check([before, after], [total, total], "all_reduce(SUM) before and after the deadlock")
    return {"all send first": outcome, "even ranks send first": received, "sum over the world": after}


# %% [markdown]
# **Predict first.** A message is two numbers, 16 bytes: less than any network buffer holds. Will `send` hand it over and return, so
# that all ranks come to their `recv`? The column "all send first" says `received` or `stuck`.

# %%
if __name__ == "__main__":
    run(all_send_first)

# %% [markdown]
# **Why.** Stuck: each rank waits for a receiver that is itself still sending, a deadlock. On gloo this happens with messages of any
# size. Backends that buffer small messages hide it until the day the messages grow. In the other order there is always somebody who
# receives. With an odd number of ranks the last rank and rank 0 are both even and neighbours: that costs a wait, but no deadlock,
# as rank 0 receives as soon as rank 1 has taken its message.

# %% [markdown]
# ### Tags
#
# Messages from one rank to another with the same tag arrive in the order in which they were sent. A tag lets the receiver choose.
# The messages must both be under way for that, so they are sent with `isend`, which does not wait; two plain `send`s would
# deadlock, the first waiting for a `recv` that comes only after the second.


# %%
@needs(ranks=2)
def tags(rank, world_size, device):
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    weight = torch.tensor([rank, 10 * rank], device=device)
    bias = torch.tensor([100 + rank, 200 + rank], device=device)
    sending = [dist.isend(weight, dst=right, tag=1), dist.isend(bias, dst=right, tag=2)]

    second, first = torch.full_like(bias, -1), torch.full_like(weight, -1)
    dist.recv(second, src=left, tag=2)
    dist.recv(first, src=left, tag=1)
    for work in sending:
        work.wait()

    check(second, torch.tensor([100 + left, 200 + left]), "recv(tag=2)")
    check(first, torch.tensor([left, 10 * left]), "recv(tag=1)")
    return {"received first, tag 2": second, "received then, tag 1": first}


# %% [markdown]
# **Predict first.** Rank 0 sends `[0, 0]` with tag 1, and then `[100, 200]` with tag 2. Which of them does the first `recv` of rank
# 1 bring: the one that was sent first?

# %%
if __name__ == "__main__":
    run(tags)

# %% [markdown]
# **Why.** The order of sending counts among messages with the same tag only. The receiver asked for tag 2, and the other message
# waited.

# %% [markdown]
# ### From any source
#
# Without `src`, `recv` takes the next message from whoever it is, and tells who it was: a server that hands out work needs this.
# The order of arrival differs from run to run, so keep what comes by its sender. Here every rank in turn is the one who collects.


# %%
@needs(ranks=2)
def receive_from_any(rank, world_size, device):
    collected = {}
    for collector in range(world_size):
        if rank != collector:
            dist.send(torch.tensor([10 * rank + collector], device=device), dst=collector)
            continue
        for _ in range(world_size - 1):
            message = torch.full((1,), -1, device=device)
            source = dist.recv(message)
            collected[source] = message.item()

    others = [other for other in range(world_size) if other != rank]
    check(collected, {other: 10 * other + rank for other in others}, "recv(src=None)")
    return {"heard from": sorted(collected), "their messages": [collected[source] for source in sorted(collected)]}


# %%
if __name__ == "__main__":
    run(receive_from_any)

# %%
STEPS = [send_recv, all_send_first, tags, receive_from_any]

# %% [markdown]
# ## The proof
#
# In the chain each rank's digits are those of all ranks before it, in order: a message lost, doubled or from the wrong rank
# shows. In the rings each message bears its sender's number, and the receiver knows its left neighbour's. From any source, the
# sender that `recv` names must be the one whose number is in the message, and every other rank must have been heard once.

# %% [markdown]
# ## The cost
#
# S bytes cross one link, once, in one step. A chain over n ranks takes n - 1 steps, one after the other; in a ring, with even and
# odd ranks, all messages travel in two steps (three where n is odd).
#
# Bus-bandwidth factor: `1`. (Algorithm bandwidth is S / time; there is nothing to correct.)

# %% [markdown]
# ## Pitfalls
#
# - `send` may return before the other rank has the data. All it promises is that the tensor may be written again. On gloo it
#   waits for the receiver, MPI may keep a copy of a small message, and on CUDA with NCCL it puts the transfer on a stream and
#   returns.
# - Nothing checks dtype or shape. On gloo, int32 sent into a float32 buffer arrives as garbage without an error; a short message
#   leaves the rest of the buffer as it was; a message longer than the buffer kills the receiving process.
# - With `group=`, `src` and `dst` are still ranks of the world; `group_src` and `group_dst` count within the group.
# - NCCL ignores `tag` and cannot receive from any source: there, messages between two ranks match by order alone.
# - A rank cannot send to itself on gloo: `send` refuses it. Copy the tensor.
# - On gloo a tensor must be contiguous: a transposed one is refused.

# %% [markdown]
# ## Where it is used
#
# Pipeline parallelism sends activations to the next stage and gradients back. Serving with separate prefill and decode workers
# sends the key-value cache from one to the other. A coordinator hands work to whoever asks first, with a receive from any source.

# %% [markdown]
# ## Change and try
#
# Each of these is one change in one cell: make it, run that cell and the one after it, and undo it.
#
# 1. In `send_recv`, change `torch.full((1,), -1, device=device)` to `torch.full((1,), -1.0, device=device)`. That makes the buffer
#    float32, half as long as an int64 message. Is there an error that names the dtype? It says
#    `rank 1 died: it was killed by SIGABRT`: nothing compares them, and no `except` could have caught it.
# 2. In `all_send_first`, change `if rank % 2 == 0:` to `if rank != 0:`. Now rank 0 alone receives first. Is one enough? It says
#    `all_send_first: proved on all 4 ranks`: the last rank gets rid of its message, then receives, which frees the rank before it.
#    But that takes n steps, one after the other, in place of two.
# 3. In `tags`, change `dist.recv(second, src=left, tag=2)` to `dist.recv(second, src=left, tag=1)` and
#    `dist.recv(first, src=left, tag=1)` to `dist.recv(first, src=left, tag=2)`. Both have the same shape and dtype, so nothing is
#    refused. Who notices? Only the proof. It says `[recv(tag=2), int64[2], gloo]`.

# %% [markdown]
# ## Read on
#
# In PyTorch's documentation:
#
# - [`send`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.send)
# - [`recv`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.recv)
# - [`isend`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.isend)
# - [`new_group`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.new_group)
# - [`all_reduce`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_reduce)
#
# Next lesson: [isend_irecv](../notebooks/isend_irecv.ipynb), the same messages without the waiting.
