# %% [markdown]
"""
# send_recv

A model that is too large for one GPU is cut into stages, one on each rank, and every stage hands
its result to the next. `send` gives a tensor to one other rank, which takes it with `recv`; no
third rank takes part.

You will see a message that goes from rank to rank and is changed on its way; an order that avoids a
deadlock in a ring; a model in stages, forward and backward; and a receive that takes what comes,
whoever sent it.

    python lessons/send_recv.py
    torchrun --nproc-per-node 4 lessons/send_recv.py
"""

# %%
from collectives import check
from collectives.lesson import needs, run
import torch
import torch.distributed as dist

# %% [markdown]
# ## The call
#
# Every `send` needs a `recv` on the rank that it names. Only the bytes travel, so the receiver must
# know the shape and the dtype beforehand: it brings a buffer, and `recv` fills it. Here each rank
# appends its own digit, rank + 1, to the number that it received, and passes the new number on.


# %%
@needs(ranks=2)
def send_recv(rank, world_size, device):
    received = torch.tensor([0], device=device)
    if rank > 0:
        dist.recv(received, src=rank - 1)
    x = 10 * received + rank + 1
    if rank < world_size - 1:
        dist.send(x, dst=rank + 1)
    # proof: the digits of all ranks up to this one, each at its place
    digits = sum((r + 1) * 10 ** (rank - r) for r in range(rank + 1))
    check(x, torch.tensor([digits]), "send, recv along a chain")
    return {"received": received if rank > 0 else None, "x": x}


# %%
if __name__ == "__main__":
    run(send_recv)

# %% [markdown]
# Four ranks print this:
#
# | rank | received | x |
# |---|---|---|
# | 0 | - | [1] |
# | 1 | [1] | [12] |
# | 2 | [12] | [123] |
# | 3 | [123] | [1234] |
#
# The digits record the route of the message: a rank that was left out, or visited in another order,
# would show. The picture has one row for each rank, and an arrow for each message. Look at the
# `recv` of rank 3: it begins with the others, and ends only when all ranks before it have done
# their work.

# %% [markdown]
# ### Who sends first?
#
# Now the ranks form a ring, and everyone has a message for the rank on its right. On gloo `send`
# waits until the receiver takes the message. So if all ranks send first, no rank comes to its
# `recv`, and all of them wait [until the time limit](../notebooks/mistakes/messages.ipynb): a
# deadlock. (Libraries that buffer small messages hide it until the day the messages grow.) A rule
# that breaks the circle: even ranks send first, odd ranks receive first.


# %%
@needs(ranks=2)
def even_ranks_send_first(rank, world_size, device):
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    message = torch.tensor([rank + 1, 10 * (rank + 1)], device=device)
    received = torch.full_like(message, -1)
    if rank % 2 == 0:
        dist.send(message, dst=right)
        dist.recv(received, src=left)
    else:
        dist.recv(received, src=left)
        dist.send(message, dst=right)
    # proof
    check(received, torch.tensor([left + 1, 10 * (left + 1)]), "send, recv around a ring")
    return {"sent": message, "received": received}


# %% [markdown]
# **Predict first.** A rank can take part in one message at a time. In one round, all messages
# between free ranks travel. How many rounds do four ranks need for their four messages, and how
# many do five ranks need for five? Write both numbers down.

# %%
if __name__ == "__main__":
    run(even_ranks_send_first)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Four ranks need two rounds: first the messages of ranks 0 and 2, then those of ranks 1 and 3. The
# picture shows the two rounds one after the other. Five ranks need three, because rank 4 and rank 0
# are neighbours and both send first. Rank 4 waits until rank 0 has got rid of its own message; that
# is slower, but no deadlock.
#
# </details>

# %% [markdown]
# ### A model in stages
#
# Each rank holds one weight, rank + 1, and computes `y = weight * x`. Rank 0 starts with x = 1, and
# sends its y to rank 1, for which it is the x. The last rank has the output of the whole model.
# Then the gradients take the same way back: each rank receives the gradient of its y, calls
# `backward`, and sends the gradient of its x. Autograd ends at the border of a process, so the two
# messages take its place there.


# %%
@needs(ranks=2)
def stages(rank, world_size, device):
    weight = torch.tensor([rank + 1.0], device=device, requires_grad=True)
    x = torch.ones(1, device=device)
    if rank > 0:
        dist.recv(x, src=rank - 1)
    x.requires_grad_()
    y = weight * x
    gradient = torch.ones_like(y)
    if rank < world_size - 1:
        dist.send(y.detach(), dst=rank + 1)
        dist.recv(gradient, src=rank + 1)
    y.backward(gradient)
    if rank > 0:
        dist.send(x.grad, dst=rank - 1)
    # proof: the output is the product of all weights
    output = torch.arange(1.0, world_size + 1).prod()
    check(weight.grad, (output / (rank + 1)).reshape(1), "the gradient of one process")
    return {"weight": weight.item(), "y": y.item(), "gradient of the weight": weight.grad.item()}


# %% [markdown]
# **Predict first.** The weights are 1, 2, 3 and 4, so the output is 1 * 2 * 3 * 4 = 24. What is the
# gradient of the output with respect to the weight of rank 1? Write the number down.

# %%
if __name__ == "__main__":
    run(stages)

# %% [markdown]
# <details><summary>Answer</summary>
#
# It is 12, the product of all other weights. Rank 1 knows none of them. It received the 1 from the
# left, and 3 * 4 = 12 from the right. In the picture the arrows first go down and then up. Most of
# the time three ranks of four wait: pipeline parallelism cuts the batch into micro-batches, so that
# every stage has work.
#
# </details>

# %% [markdown]
# ### From any source
#
# Without `src`, `recv` takes the next message from any rank, and returns the rank of its sender. A
# server that hands out work needs this. The order of arrival may differ from run to run, so rank 0
# keeps each message under the number of its sender. That is why the arrows in the picture are
# dashed.


# %%
@needs(ranks=2)
def receive_from_any(rank, world_size, device):
    collected = {}
    if rank > 0:
        dist.send(torch.tensor([10 * rank], device=device), dst=0)
    else:
        for _ in range(world_size - 1):
            message = torch.full((1,), -1, device=device)
            source = dist.recv(message)
            collected[source] = message.item()
    # proof: every other rank was heard once
    others = range(1, world_size) if rank == 0 else []
    check(collected, {other: 10 * other for other in others}, "recv(src=None)")
    heard = sorted(collected)
    return {"heard from": heard, "their messages": [collected[source] for source in heard]}


# %%
if __name__ == "__main__":
    run(receive_from_any)

# %%
STEPS = [send_recv, even_ranks_send_first, stages, receive_from_any]

# %% [markdown]
# ## The cost
#
# S bytes cross one link, once, in one step. A chain over n ranks takes n - 1 steps, one after the
# other. In a ring with the rule above, all messages travel in two steps, or three where n is odd.
#
# Bus-bandwidth factor: `1`. (The algorithm bandwidth is S / time; there is nothing to correct.)

# %% [markdown]
# ## Pitfalls
#
# - `send` may return before the other rank has the data. It promises only that you may write to the
#   tensor again. gloo waits for the receiver, MPI may keep a copy of a small message, and NCCL puts
#   the transfer on a stream and returns (documented).
# - Nothing checks dtype or shape. On gloo a short message leaves the rest of the buffer as it was,
#   and a message longer than the buffer [kills the receiving
#   process](../notebooks/mistakes/buffers.ipynb).
# - On gloo a message is for the `recv` with the same `tag`, and for no other: [both ranks
#   wait](../notebooks/mistakes/messages.ipynb) if the tags differ.
# - NCCL ignores `tag` and cannot receive from any source (documented).
# - A rank cannot send to itself on gloo. Copy the tensor.
# - On gloo the tensor must be contiguous: a transposed one is refused.

# %% [markdown]
# ## Where it is used
#
# Pipeline parallelism sends activations to the next stage and gradients back. Where one set of GPUs
# reads the prompt and another writes the answer, the first sends the key-value cache to the second.
# A coordinator hands work to whoever asks first, with a receive from any source.

# %% [markdown]
# ## Change and try
#
# Each of these is one change in one cell. Make it, run that cell and the one after it, and undo it.
#
# 1. In `send_recv`, change `torch.tensor([0], device=device)` to `torch.tensor([0 if rank != 1 else
#    0.0], device=device)`. The buffer of rank 1 is now float32, half as long as the int64 message.
#    Is there an error that names the dtype?
#
#    <details><summary>Answer</summary>
#
#    You get `rank 1 died: it was killed by SIGABRT`. Nothing compares the dtypes, and no `except`
#    could have caught this: gloo ends the whole process.
#
#    </details>
#
# 2. In `even_ranks_send_first`, change `if rank % 2 == 0:` to `if rank != 0:`. Now rank 0 alone
#    receives first. Is one exception enough?
#
#    <details><summary>Answer</summary>
#
#    You get `even_ranks_send_first: proved on all 4 ranks`. The last rank gets rid of its message,
#    then it receives, which frees the rank before it, and so on. But that takes n rounds, one after
#    the other, in place of two.
#
#    </details>
#
# 3. In `stages`, change `dist.send(x.grad, dst=rank - 1)` to `dist.send(weight.grad, dst=rank -
#    1)`. The shape is the same, so nothing is refused. Which gradient does rank 2 compute?
#
#    <details><summary>Answer</summary>
#
#    You get `[the gradient of one process, float32[1], gloo]`. Rank 3 sent 6, the gradient of its
#    weight, in place of 4, so rank 2 computed 12 in place of 8. Only the comparison with one
#    process shows it.
#
#    </details>

# %% [markdown]
# ## Write it yourself
#
# Write `my_broadcast(x, src)` with `send` and `recv`: afterwards every rank holds in `x` what rank
# `src` held there. The simplest way sends n - 1 messages one after the other; for a tree, let every
# rank that has the tensor send it on.
#
# <details><summary>One way to write it</summary>
#
# ```python
# def my_broadcast(x, src):
#     if dist.get_rank() != src:
#         dist.recv(x, src=src)
#         return
#     for other in range(dist.get_world_size()):
#         if other != src:
#             dist.send(x, dst=other)
#
#
# def try_my_broadcast(rank, world_size, device):
#     for src in range(world_size):
#         x = torch.tensor([rank + 1, 10 * (rank + 1)], device=device)
#         my_broadcast(x, src)
#         check(x, torch.tensor([src + 1, 10 * (src + 1)]), f"my_broadcast(src={src})")
#     return {"from the last rank": x}
# ```
#
# </details>

# %% [markdown]
# ## Read on
#
# - Y. Huang and others, [*GPipe*](https://arxiv.org/abs/1811.06965) (2018): stages that send
#   activations, and micro-batches that keep them busy.
# - D. Narayanan and others, [*Efficient Large-Scale Language Model Training on GPU Clusters Using
#   Megatron-LM*](https://arxiv.org/abs/2104.04473) (2021): how pipeline, tensor and data
#   parallelism share a cluster.
#
# In PyTorch's documentation:
#
# - [`send`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.send)
# - [`recv`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.recv)
# - [`get_rank`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.get_rank)
# - [`get_world_size`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.get_world_size)
#
# Next lesson: [isend_irecv](../notebooks/isend_irecv.ipynb), the same messages without the waiting.
