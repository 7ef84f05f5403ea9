# %% [markdown]
"""
# isend_irecv

A rank that waits for a message computes nothing, and GPUs are too expensive to wait. `isend` and
`irecv` start a send and a receive and return immediately, each with a `Work`; the message is
through when `wait()` returns.

You will see a ring in which everybody sends at once; a row of numbers that is cut over the ranks; a
matrix product while messages travel, and a proof that nobody waited; tags that tell messages apart;
blocks that go round the ring; and an error that shows only in `wait()`.

    python lessons/isend_irecv.py
    torchrun --nproc-per-node 4 lessons/isend_irecv.py
"""

# %%
from collectives import check
from collectives.lesson import needs, run
import torch
import torch.distributed as dist

# %% [markdown]
# ## The call
#
# The whole lesson in one line: start the receives first (this is called posting them), keep every
# `Work`, call `wait()` on each, and only then touch the tensors. Here every rank sends to the rank
# on its right. No rank has to go first, as in [send_recv](../notebooks/send_recv.ipynb).


# %%
@needs(ranks=2)
def isend_irecv(rank, world_size, device):
    x, received = torch.tensor([rank + 1], device=device), torch.tensor([-1], device=device)
    receiving = dist.irecv(received, src=(rank - 1) % world_size)
    sending = dist.isend(x, dst=(rank + 1) % world_size)
    receiving.wait()
    sending.wait()
    # proof
    check(received, torch.tensor([(rank - 1) % world_size + 1]), "isend, irecv around a ring")
    return {"x": x, "received": received}


# %%
if __name__ == "__main__":
    run(isend_irecv)

# %% [markdown]
# Four ranks print this:
#
# | rank | x | received |
# |---|---|---|
# | 0 | [1] | [4] |
# | 1 | [2] | [1] |
# | 2 | [3] | [2] |
# | 3 | [4] | [3] |
#
# Each rank has the number of the rank on its left. In the picture all four messages travel at the
# same time: each arrow goes from an `isend` to the `wait` for it.

# %% [markdown]
# ### A row of numbers that is cut
#
# The squares 1, 4, 9, ... are cut over the ranks, three to each, and we want the difference between
# each square and the one before it. For its first difference a rank needs the last square of the
# rank on its left. A value that is copied from a neighbour like this is called a halo. Rank 0 has
# no left neighbour, and takes 0.


# %%
@needs(ranks=2)
def halo_exchange(rank, world_size, device):
    own = torch.arange(3 * rank + 1, 3 * rank + 4, device=device) ** 2
    halo = torch.tensor([0], device=device)
    works = [dist.irecv(halo, src=rank - 1)] if rank > 0 else []
    if rank < world_size - 1:
        works.append(dist.isend(own[-1:], dst=rank + 1))
    for work in works:
        work.wait()
    differences = own.diff(prepend=halo)
    # proof: i * i - (i - 1) * (i - 1) = 2 * i - 1
    odd = 2 * torch.arange(3 * rank + 1, 3 * rank + 4) - 1
    check(differences, odd, "isend, irecv of a halo")
    return {"own": own, "halo": halo, "differences": differences}


# %%
if __name__ == "__main__":
    run(halo_exchange)

# %% [markdown]
# The differences are the odd numbers, from rank to rank without a gap: a wrong halo would break the
# row. Compare the picture with that of the chain in [send_recv](../notebooks/send_recv.ipynb):
# there every rank waits for all ranks before it; here the messages travel side by side.

# %% [markdown]
# ### Compute while messages travel
#
# Now every rank starts a receive, computes a matrix product while the receive is open, and sends
# its product to the right. Timings prove little on a busy machine. The order of events does: each
# rank sends only after its own `irecv` has returned.


# %%
@needs(ranks=2)
def overlap(rank, world_size, device):
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    arriving = torch.full((64, 64), -1.0, device=device)
    receiving = dist.irecv(arriving, src=left)
    product = torch.full_like(arriving, rank + 1) @ torch.ones_like(arriving)
    sending = dist.isend(product, dst=right)
    receiving.wait()
    sending.wait()
    # proof: had `irecv` waited, no rank would have come to its `isend`
    check(arriving, torch.full((64, 64), 64.0 * (left + 1)), "irecv, product, isend")
    return {"computed": product[0, 0].item(), "received": arriving[0, 0].item()}


# %% [markdown]
# **Predict first.** If `irecv` waited for its message, how many of the four ranks would come to
# their `isend`? And which number does rank 0 receive? Write both numbers down. (In the product of
# rank 0 every element is 64.)

# %%
if __name__ == "__main__":
    run(overlap)

# %% [markdown]
# <details><summary>Answer</summary>
#
# None of them would: each would wait for a rank that waits itself, and the step would never end. It
# did end, so no `irecv` waited. Rank 0 receives 256 from rank 3. In the picture each arrow goes
# from an `isend` to the `wait` for it; the `irecv` stands before all of them, and the product was
# computed after it.
#
# </details>

# %% [markdown]
# ### Tags
#
# Messages from one rank to another with the same tag arrive in the order in which they were sent.
# With tags the receiver can choose. Both messages must be under way for that, so they are sent with
# `isend`: a plain `send` of the first would wait for a `recv` that comes only after the second.


# %%
@needs(ranks=2)
def tags(rank, world_size, device):
    weight, bias = torch.tensor([1], device=device), torch.tensor([101], device=device)
    first, second = torch.full_like(bias, -1), torch.full_like(weight, -1)
    if rank == 0:
        works = [dist.isend(weight, dst=1, tag=1), dist.isend(bias, dst=1, tag=2)]
        for work in works:
            work.wait()
    if rank == 1:
        dist.recv(first, src=0, tag=2)
        dist.recv(second, src=0, tag=1)
    # proof
    expected = [101, 1] if rank == 1 else [-1, -1]
    check([first.item(), second.item()], expected, "recv(tag=...)")
    return {"first": first, "second": second}


# %% [markdown]
# **Predict first.** Rank 0 sends 1 with tag 1, and then 101 with tag 2. Which number does the first
# `recv` of rank 1 bring? Write it down.

# %%
if __name__ == "__main__":
    run(tags)

# %% [markdown]
# <details><summary>Answer</summary>
#
# It is 101. The receiver asked for tag 2, and the message with tag 1 waited.
#
# </details>

# %% [markdown]
# ### A ring
#
# `batch_isend_irecv` starts a list of sends and receives together, so no rank needs to know who
# goes first. On NCCL this is the safe way to exchange, because single sends and receives may wait
# for each other there (documented). Here the blocks go round the ring until every rank has had
# every block. That takes n - 1 hops, and in each a rank passes on what it got in the hop before.
# `trail` collects what a rank has had, digit by digit.


# %%
@needs(ranks=2)
def ring_exchange(rank, world_size, device):
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    block = torch.tensor([rank + 1], device=device)
    trail = block.clone()
    for _ in range(world_size - 1):
        arriving = torch.full_like(block, -1)
        send = dist.P2POp(dist.isend, block, right)
        receive = dist.P2POp(dist.irecv, arriving, left)
        for work in dist.batch_isend_irecv([send, receive]):
            work.wait()
        block = arriving
        trail = 10 * trail + block
    # proof: after k hops a rank has the block of the rank k places to its left
    digits = [((rank - hop) % world_size + 1) for hop in range(world_size)]
    expected = sum(digit * 10**place for place, digit in enumerate(reversed(digits)))
    check(trail, torch.tensor([expected]), "batch_isend_irecv around a ring")
    return {"trail": trail}


# %% [markdown]
# **Predict first.** The blocks of the four ranks are 1, 2, 3 and 4, and every block moves to the
# right. Which number is the trail of rank 2? Write it down.

# %%
if __name__ == "__main__":
    run(ring_exchange)

# %% [markdown]
# <details><summary>Answer</summary>
#
# It is 3214: its own block, then that of rank 1, of rank 0 and of rank 3. After k hops a rank has
# the block of the rank k places to its left. Ring algorithms all rely on this count; off-by-one and
# wrong-direction bugs are the usual mistakes.
#
# </details>

# %% [markdown]
# ### Errors come at `wait()`
#
# What goes wrong in the background cannot be raised by the call that started it: that call has
# returned. The error waits in the `Work`. gloo, for example, has no AVG for integers, but only the
# thread in the background finds out.


# %%
@needs(ranks=2)
def error_at_wait(rank, world_size, device):
    count = torch.tensor([rank + 1], device=device)
    average, events = count.clone(), []
    try:
        work = dist.all_reduce(average, op=dist.ReduceOp.AVG, async_op=True)
        events.append("started")
        work.wait()
        events.append("done")
    except (RuntimeError, ValueError):
        events.append("error")
    dist.all_reduce(count, op=dist.ReduceOp.SUM)  # the group still works
    # proof: other backends have the reduction, or refuse it in the call itself
    if dist.get_backend() == "gloo":
        check(events, ["started", "error"], "all_reduce(AVG, async_op=True) of integers")
    check(count, torch.tensor([world_size * (world_size + 1) // 2]), "all_reduce(SUM) afterwards")
    return {"events": events, "sum": count}


# %%
if __name__ == "__main__":
    run(error_at_wait)

# %% [markdown]
# A message behaves in the same way. On gloo, `irecv` from a rank that dies afterwards returns a
# `Work` as if all were well, and `wait()` raises ["Connection closed by
# peer"](../notebooks/mistakes/processes.ipynb). So a `Work` without a `wait()` also hides its
# error.

# %%
STEPS = [isend_irecv, halo_exchange, overlap, tags, ring_exchange, error_at_wait]

# %% [markdown]
# ## The cost
#
# S bytes cross one link in one step, as with `send` and `recv`. What changes is who pays: a
# transfer costs no time while the rank computes anyway. In memory, each message under way needs a
# buffer. A ring takes n - 1 steps, and in each every rank sends one block, S / n bytes if S is all
# blocks together.
#
# Bus-bandwidth factor: `1`. (The algorithm bandwidth is S / time; there is nothing to correct.)

# %% [markdown]
# ## Pitfalls
#
# - Until `wait()` returns, the tensors belong to the backend. Do not [write to what is being
#   sent](../notebooks/mistakes/buffers.ipynb), and do not read or write what is being received. If
#   you need to keep writing, send a copy; reuse the copy's memory after `wait()`.
# - Keep every `Work`. On gloo a `Work` that is dropped takes its message with it, without an error:
#   the other rank waits in vain, or the buffer is never filled.
# - On gloo `is_completed()` of a send or a receive says False until `wait()`, even when the data
#   arrived long ago. Do not poll.
# - `isend(...).wait()` before the receive is the [deadlock of
#   `send`](../notebooks/mistakes/messages.ipynb) again.
# - On CUDA `wait()` does not stop the host: it makes the current stream wait (documented). A kernel
#   that writes to the tensor counts as you writing.
# - On NCCL the first `isend` or `irecv` between two ranks connects them and needs both at that
#   moment (documented). Ranks that all post a receive first can hang there; a batch does not.

# %% [markdown]
# ## Where it is used
#
# Pipeline parallelism sends one micro-batch while it computes the next. Ring attention passes keys
# and values round a ring and computes on one block while the next one travels. Stencils and
# convolutions that are cut over ranks exchange halos.

# %% [markdown]
# ## Change and try
#
# Each of these is one change in one cell. Make it, run that cell and the one after it, and undo it.
#
# 1. In `overlap`, change `receiving = dist.irecv(arriving, src=left)` to `dist.recv(arriving,
#    src=left)`. Now every rank waits for a message that nobody can send yet. You need not wait for
#    the time limit of 60 s: in a notebook press Stop (elsewhere Ctrl-C), and all ranks are ended.
#    What is said of rank 0?
#
#    <details><summary>Answer</summary>
#
#    You get `rank 0 hung`. All four ranks stand in `recv`, and no product is ever computed.
#
#    </details>
#
# 2. In `halo_exchange`, change `own[-1:]` to `own[:1]`. Every rank now sends its first square.
#    Which differences are wrong: all of them, or one on each rank?
#
#    <details><summary>Answer</summary>
#
#    You get `[isend, irecv of a halo, int64[3], gloo]`. Compare what it got with what it should
#    have: only the first difference of a rank needs the halo. Rank 0 sees no fault, because it has
#    no halo.
#
#    </details>
#
# 3. In `ring_exchange`, change `block = arriving` to `pass`. A rank passes on its own block, again
#    and again. What is the trail of rank 0?
#
#    <details><summary>Answer</summary>
#
#    You get `[batch_isend_irecv around a ring, int64[1], gloo]`. `trail` reads `block`, which never
#    changes: 1111 on rank 0, in place of 1432.
#
#    </details>

# %% [markdown]
# ## Write it yourself
#
# Write `ring_all_reduce(x)`: cut x into n pieces, which go round the ring and are added up in n - 1
# steps, and go round once more as finished sums. In step s, rank r sends piece r - s and receives
# piece r - s - 1, both modulo n.
#
# <details><summary>One way to write it</summary>
#
# ```python
# def ring_all_reduce(x):
#     rank, n = dist.get_rank(), dist.get_world_size()
#     left, right = (rank - 1) % n, (rank + 1) % n
#     pieces = x.tensor_split(n)  # views: to write to a piece is to write to x
#     for step in range(2 * (n - 1)):
#         piece = pieces[(rank - step - 1) % n]
#         arriving = torch.empty_like(piece)
#         send = dist.P2POp(dist.isend, pieces[(rank - step) % n], right)
#         receive = dist.P2POp(dist.irecv, arriving, left)
#         for work in dist.batch_isend_irecv([send, receive]):
#             work.wait()
#         if step < n - 1:
#             piece += arriving
#         else:
#             piece.copy_(arriving)
#
#
# def try_ring_all_reduce(rank, world_size, device):
#     x = torch.arange(1, 2 * world_size + 2) * 10**rank
#     ring_all_reduce(x)
#     ones = (10**world_size - 1) // 9
#     check(x, torch.arange(1, 2 * world_size + 2) * ones, "ring_all_reduce")
#     return {"after": x}
# ```
#
# </details>

# %% [markdown]
# ## Read on
#
# - H. Liu, M. Zaharia and P. Abbeel, [*Ring Attention with Blockwise Transformers for Near-Infinite
#   Context*](https://arxiv.org/abs/2310.01889) (2023): a ring that hides its messages behind the
#   computation.
# - P. Patarasuk and X. Yuan, *Bandwidth optimal all-reduce algorithms for clusters of workstations*
#   (2009): the ring that you wrote.
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
# - [`get_rank`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.get_rank)
# - [`get_world_size`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.get_world_size)
#
# Next lesson: [new_group](../notebooks/new_group.ipynb), how some of the ranks can talk among
# themselves.
