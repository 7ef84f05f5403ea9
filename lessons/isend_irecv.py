# %% [markdown]
"""
# isend_irecv

`isend` and `irecv` start a send and a receive and return at once, each with a `Work`; the message is through when `wait()`
returns.

A **rank** is one process of the job, and its number, from 0; the **world size**, n below, is how many there are. The **backend** is
the library that moves the bytes: gloo (CPU), NCCL (GPU) or MPI.

You will see a computation that goes on while a message travels, the proof that nobody waited, who owns a tensor until `wait()`,
and a ring in which every rank sends and receives at the same time.

    python lessons/isend_irecv.py
    torchrun --nproc-per-node 4 lessons/isend_irecv.py

To run it, clone the repository and type `make tour`; or, where you already have torch, `pip install -e '.[notebooks]'`.
"""

# %%
from collectives import check
from collectives.lesson import needs, run
import torch
import torch.distributed as dist

# %% [markdown]
# ## Worked numbers
#
# The squares 0, 1, 4, 9, ... are spread over four ranks, three to each. Wanted: the difference of each square and the one before
# it. The first difference of a rank needs the last square of its left neighbour: the halo. The others need nothing, and are
# computed while the halo travels.
#
# | rank | own | halo | differences |
# |---|---|---|---|
# | 0 | [0, 1, 4] | - | [1, 3] |
# | 1 | [9, 16, 25] | [4] | [5, 7, 9] |
# | 2 | [36, 49, 64] | [25] | [11, 13, 15] |
# | 3 | [81, 100, 121] | [64] | [17, 19, 21] |

# %% [markdown]
# ## The code
#
# Three moves: start the messages, compute what does not need them, wait. Post the receive first, so that the data finds its
# place.


# %%
@needs(ranks=2)
def isend_irecv(rank, world_size, device):
    own = torch.arange(3 * rank, 3 * rank + 3, device=device) ** 2
    halo = torch.full((1,), -1, device=device) if rank > 0 else None
    works = []
    if rank > 0:
        works.append(dist.irecv(halo, src=rank - 1))
    if rank < world_size - 1:
        works.append(dist.isend(own[-1:], dst=rank + 1))

    differences = own.diff()  # needs no neighbour; reading `own` is allowed while it is being sent

    for work in works:
        work.wait()
    if rank > 0:
        differences = torch.cat([own[:1] - halo, differences])

    odd = 2 * torch.arange(3 * rank, 3 * rank + 3) - 1  # i * i - (i - 1) * (i - 1) = 2 * i - 1
    check(differences, odd if rank > 0 else odd[1:], "isend, irecv of a halo")
    check(own, torch.arange(3 * rank, 3 * rank + 3) ** 2, "isend leaves what it sends unchanged")
    return {"own": own, "halo": halo, "differences": differences}


# %%
if __name__ == "__main__":
    run(isend_irecv)

# %% [markdown]
# ### Nobody waited: a proof by order
#
# Seconds prove little on a busy machine; order proves it. Here every rank posts its receive, asks whether it is complete, and only
# then gives its number to a sum over all ranks. The messages carry that sum.


# %%
@needs(ranks=2)
def overlap_by_order(rank, world_size, device):
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    received = torch.full((2,), -1, device=device)
    receiving = dist.irecv(received, src=left)
    before = receiving.is_completed()

    total = torch.tensor([rank], device=device)
    dist.all_reduce(total)  # the computation meanwhile; it needs every rank
    message = torch.cat([total, total + rank])
    sending = dist.isend(message, dst=right)

    receiving.wait()
    sending.wait()
    everyone = world_size * (world_size - 1) // 2  # 0 + 1 + ... + (n - 1)
    check(before, False, "is_completed() before the message exists")
    check(received, torch.tensor([everyone, everyone + left]), "irecv before the message exists")
    return {"complete before": before, "computed meanwhile": total, "received": received}


# %% [markdown]
# **Predict first.** No message can exist before every rank has come to the `all_reduce`, and every rank calls `irecv` before that.
# Does this step end? And what does the column "complete before" say?

# %%
if __name__ == "__main__":
    run(overlap_by_order)

# %% [markdown]
# **Why.** Had one `irecv` waited for its message, it would have waited for ever, as the message is made from a sum that needs every
# rank. That the step ended proves that none did.

# %% [markdown]
# ### Who owns the tensor until `wait()`
#
# From `isend` to `wait()` the tensor belongs to the backend: you may read it, but not write it. From `irecv` to `wait()` you may do
# neither. Who must go on writing at once sends a copy, and after `wait()` uses the room of the copy again. Here every rank adds 100
# to its weights before anyone receives them (the `all_reduce` sees to that).


# %%
@needs(ranks=2)
def buffer_rules(rank, world_size, device):
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    weights = torch.tensor([rank, 10 * rank], device=device)
    travelling = torch.empty_like(weights)
    versions = []
    for version in range(3):
        travelling.copy_(weights)
        sending = dist.isend(travelling, dst=right)  # subtle: keep the Work; on gloo a message whose Work is dropped is lost
        weights += 100  # ours at any time; `travelling` is not
        total = weights.clone()
        dist.all_reduce(total)

        received = torch.full_like(weights, -1)
        receiving = dist.irecv(received, src=left)
        receiving.wait()  # only now may `received` be read
        sending.wait()  # and `travelling` be written
        check(received, torch.tensor([left, 10 * left]) + 100 * version, "isend of a copy, then a change of the original")
        versions.append(received.tolist())

    ranks = torch.arange(world_size)
    check(weights, torch.tensor([rank, 10 * rank]) + 300, "isend of a copy, then a change of the original")
    check(total, torch.stack([ranks + 300, 10 * ranks + 300]).sum(dim=1), "all_reduce(SUM) while messages travel")
    return {"received": versions, "own weights at the end": weights}


# %% [markdown]
# **Predict first.** In the first of the three rounds rank 1 receives what rank 0 sent. Rank 0 had `[0, 0]` when it called `isend`,
# and `[100, 100]` when rank 1 came to receive. Which of them arrives?

# %%
if __name__ == "__main__":
    run(buffer_rules)

# %% [markdown]
# **Why.** The old ones, as a copy was sent. Had `weights` itself been sent, the new ones would arrive on gloo; elsewhere the old
# ones, or some of each.

# %% [markdown]
# ### A ring with batch_isend_irecv
#
# A list of sends and receives, started together: no rank needs to know who goes first. On NCCL this is the way to exchange at
# all, since single sends and receives may wait for each other there. Here the blocks go round the ring until every rank has had
# every block: n - 1 hops, in each of which a rank passes on what came in the hop before.


# %%
@needs(ranks=2)
def ring_exchange(rank, world_size, device):
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    block = torch.tensor([rank, 10 * rank], device=device)
    had = [block.tolist()]
    for _ in range(world_size - 1):
        arriving = torch.full_like(block, -1)
        send = dist.P2POp(dist.isend, block, right)
        receive = dist.P2POp(dist.irecv, arriving, left)
        for work in dist.batch_isend_irecv([send, receive]):
            work.wait()
        had.append(arriving.tolist())
        block = arriving

    origins = [(rank - hop) % world_size for hop in range(world_size)]
    check(had, [[origin, 10 * origin] for origin in origins], "batch_isend_irecv around a ring")
    return {"had, in this order": had}


# %% [markdown]
# **Predict first.** Each rank passes on to the right what came from the left in the hop before. In which order does rank 2 have the
# blocks of the four ranks?

# %%
if __name__ == "__main__":
    run(ring_exchange)

# %% [markdown]
# **Why.** After k hops a rank has the block of the rank k places to its left. Many algorithms on rings count like this, and count
# wrongly where they go the other way round.

# %%
STEPS = [isend_irecv, overlap_by_order, buffer_rules, ring_exchange]

# %% [markdown]
# ## The proof
#
# The differences of the squares are the odd numbers, without a gap from one rank to the next: a wrong halo breaks the row. In the
# second step the message carries what it could not carry had anybody waited; in the third it carries what its sender has
# overwritten since. In the ring every rank must have had the blocks of all ranks, its left neighbour's first.

# %% [markdown]
# ## The cost
#
# As `send` and `recv`: S bytes over one link in one step. What changes is who pays: time in which the rank computes anyway costs
# nothing. In memory: a buffer for each message that is under way. A ring takes n - 1 steps, and in each every rank sends one
# block, S / n bytes if S is all blocks together.
#
# Bus-bandwidth factor: `1`. (Algorithm bandwidth is S / time; there is nothing to correct.)

# %% [markdown]
# ## Pitfalls
#
# - Do not poll, and do not take `is_completed()` for a proof: on gloo that of a send or receive says False until `wait()`, even
#   when the data has long arrived.
# - Keep every `Work` and wait for it. On gloo a dropped one takes its message with it, without an error: the other rank waits in
#   vain, or the buffer is never filled.
# - Started is not buffered: `isend` on all ranks, then `recv`, is safe on gloo and MPI. With `isend(...).wait()` it is the
#   deadlock of `send`.
# - On CUDA `wait()` does not stop the host: it makes the current stream wait. A kernel that writes the tensor counts as you
#   writing.
# - On NCCL the first `isend` or `irecv` of a pair of ranks sets up their connection and needs both at that moment. Ranks that all
#   post a receive first can hang there; a batch does not.

# %% [markdown]
# ## Where it is used
#
# Pipeline parallelism sends one micro-batch while it computes the next. Ring attention passes keys and values round a ring while
# it computes on those at hand. Stencils and convolutions that are cut over ranks exchange halos.

# %% [markdown]
# ## Change and try
#
# Each of these is one change in one cell: make it, run that cell and the one after it, and undo it.
#
# 1. In `overlap_by_order`, change `before = receiving.is_completed()` to `before = receiving.wait()`. Now everybody waits for a
#    message that nobody can send yet. It says `rank 0 hung`, when its time limit of 60 s is over. You need not wait so long: in a
#    notebook press Stop (elsewhere Ctrl-C), and all ranks are ended.
# 2. In `buffer_rules`, change `dist.isend(travelling, dst=right)` to `dist.isend(weights, dst=right)`. The weights are written
#    while they are being sent, and nothing is refused. It says `[isend of a copy, then a change of the original, int64[2], gloo]`:
#    on gloo the receivers get the new weights.
# 3. In `isend_irecv`, change `own[-1:]` to `own[:1]`. Every rank now sends its first square. Which differences are wrong: all of
#    them, or one on each rank? Compare what it got with what it should have. It says `[isend, irecv of a halo, int64[3], gloo]`.

# %% [markdown]
# ## Read on
#
# In PyTorch's documentation:
#
# - [`isend`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.isend)
# - [`irecv`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.irecv)
# - [`P2POp`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.P2POp)
# - [`batch_isend_irecv`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.batch_isend_irecv)
# - [`all_reduce`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_reduce)
#
# Next lesson: [broadcast](../notebooks/broadcast.ipynb), the first call in which all ranks take part.
