# %% [markdown]
"""
# send_recv

`send` sends a tensor to one other rank, which receives it with `recv`; no third rank takes part. A
model that is too large for one GPU is cut into stages, one on each rank.

You will see a sum that grows from rank to rank; an order of calls that avoids a deadlock; a model
in stages; and a receive from whichever rank sends first.

    python lessons/send_recv.py
    torchrun --nproc-per-node 4 lessons/send_recv.py
"""

# %%
from collectives import check, needs, run
import torch
import torch.distributed as dist

# %% [markdown]
# ## The call
#
# Every `send` needs a `recv` on the rank that it names. Only the bytes are sent, so the receiver
# must know the shape and the dtype: it passes a tensor, which `recv` fills. Here each rank adds its
# own number to the one that it received, and sends the sum on.


# %%
@needs(ranks=2)
def send_recv(rank, world_size, device):
    received = torch.tensor([0], device=device)
    if rank > 0:
        dist.recv(received, src=rank - 1)
    x = received + 10**rank
    if rank < world_size - 1:
        dist.send(x, dst=rank + 1)
    # proof: 1 + 10 + 100 + ... up to this rank
    check(x, torch.tensor([(10 ** (rank + 1) - 1) // 9]), "send, recv along a chain")
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
# | 1 | [1] | [11] |
# | 2 | [11] | [111] |
# | 3 | [111] | [1111] |
#
# This is [reduce](../notebooks/reduce.ipynb) along a [chain](../docs/glossary.md#chain). The
# picture has an arrow for each message: the `recv` of rank 3 ends only when all ranks before it
# have sent.

# %% [markdown]
# ### Who sends first?
#
# Now the ranks form a [ring](../docs/glossary.md#ring): each sends to the rank on its right, and
# the last rank to rank 0. On gloo `send` waits until the receiver takes the message. So if all
# ranks send first, no rank calls `recv`, and all wait [until the time
# limit](../notebooks/mistakes/messages.ipynb): a deadlock. The cure: even ranks send first, odd
# ranks receive first.

# %% [markdown]
# **Predict first.** With five ranks, rank 4 is even and sends first, and so does rank 0, to which
# it sends. Is that a deadlock? Try it, too: `collectives run send_recv -n 5`.


# %%
@needs(ranks=2)
def even_ranks_send_first(rank, world_size, device):
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    message = torch.tensor([10 * rank + 1, 10 * rank + 2], device=device)
    received = torch.full_like(message, -1)
    if rank % 2 == 0:
        dist.send(message, dst=right)
        dist.recv(received, src=left)
    else:
        dist.recv(received, src=left)
        dist.send(message, dst=right)
    # proof
    check(received, torch.tensor([10 * left + 1, 10 * left + 2]), "send, recv around a ring")
    return {"sent": message, "received": received}


# %%
if __name__ == "__main__":
    run(even_ranks_send_first)

# %% [markdown]
# <details><summary>Answer</summary>
#
# No. Rank 1 receives first, so rank 0 can send. Then rank 0 receives, and rank 4 can send. The
# picture of four ranks shows two rounds: first ranks 0 and 2 send, then ranks 1 and 3. With five
# ranks, rank 4 makes a third.
#
# </details>

# %% [markdown]
# ### A model in stages
#
# Each rank has one weight, rank + 1, and computes `y = weight * x`. Rank 0 starts with x = 1, and
# sends its y to rank 1, where it is the x. The last rank has the output of the model. Autograd does
# not cross processes. So, from the last rank to the first, each rank receives the gradient of its
# y, calls `backward`, and sends the gradient of its x.

# %% [markdown]
# **Predict first.** The weights are 1, 2, 3 and 4, so the output is 1 * 2 * 3 * 4 = 24. What is the
# gradient of the output with respect to the weight of rank 1?


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


# %%
if __name__ == "__main__":
    run(stages)

# %% [markdown]
# <details><summary>Answer</summary>
#
# It is 12, the product of all other weights: rank 1 received 1 from rank 0, and 3 * 4 = 12 from
# rank 2. Most of the time, three of the four ranks wait. [Pipeline
# parallelism](../docs/glossary.md#pipeline-parallel) cuts the batch into
# [micro-batches](../docs/glossary.md#micro-batch), so that every stage has work.
#
# </details>

# %% [markdown]
# ### From any source
#
# Without `src`, `recv` takes the next message from any rank, and returns the rank of its sender. A
# coordinator that hands out work needs this. The order may differ from run to run.


# %%
@needs(ranks=2)
def receive_from_any(rank, world_size, device):
    collected = {}
    if rank > 0:
        dist.send(torch.tensor([10 * rank + 1], device=device), dst=0)
    else:
        for _ in range(world_size - 1):
            message = torch.full((1,), -1, device=device)
            source = dist.recv(message)
            collected[source] = message.item()
    # proof: every other rank was heard once
    others = range(1, world_size) if rank == 0 else []
    check(collected, {other: 10 * other + 1 for other in others}, "recv(src=None)")
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
# S bytes cross one [link](../docs/glossary.md#link), once. A chain over n ranks takes n - 1
# messages, one after the other. The lesson [ring](../notebooks/algorithms/ring.ipynb) makes an
# `all_reduce` of messages.
#
# Measured on gloo between two ranks on two cores (`python benchmarks/lesson_costs.py`): 4 KiB take
# 0.07 ms and 16 MiB 4.8 ms. That is about 70 times as long for 4096 times as many bytes, so pack
# small tensors into one message.

# %% [markdown]
# ## Pitfalls
#
# - `send` may return before the other rank has the data: it only promises that you may write to the
#   tensor again. gloo waits for the receiver; MPI may keep a copy of a small message.
# - Nothing checks dtype or shape. On gloo, a short message leaves the rest of the buffer as it was,
#   and a message longer than the buffer [kills the receiving
#   process](../notebooks/mistakes/buffers.ipynb).
# - A [tag](../docs/glossary.md#tag) is a number on a message, 0 by default. On gloo, a `recv` takes
#   only messages with its own tag: if the tags differ, [both ranks
#   wait](../notebooks/mistakes/messages.ipynb).
# - On gloo, a rank cannot send to itself: copy the tensor. And it refuses a tensor that is not
#   [contiguous](../docs/glossary.md#contiguous).

# %% [markdown]
# ## On GPUs
#
# - On NCCL, `send` puts the transfer on a stream and returns
#   (`torch/include/torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp`: "each NCCL call is scheduled
#   on a separate CUDA stream"). This is said of the engine that "nccl" meant up to torch 2.14; see
#   [Which NCCL?](../docs/which-nccl.md).
# - NCCL has no tags (`torch/distributed/distributed_c10d.py`: "``tag`` is not supported with the
#   NCCL backend").
# - NCCL cannot receive from any source: a receive names [one
#   peer](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api/p2p.html).
# - A CPU tensor at one end and a GPU tensor at the other do not meet
#   (`torch/distributed/distributed_c10d.py`: "The ``gloo`` backend will be used for collectives
#   with CPU tensors and the ``nccl`` backend will be used for collectives with CUDA tensors").

# %% [markdown]
# ## Where it is used
#
# In pipeline parallelism, for activations and gradients. Where some GPUs read the prompt and others
# write the answer, the first send the [key-value cache](../docs/glossary.md#key-value-cache) to the
# second.

# %% [markdown]
# ## Change and try
#
# Make one change, run its cell and the next one, and undo it.
#
# 1. In `send_recv`, change `dist.send(x, dst=rank + 1)` to `dist.send(x, dst=rank + 1, tag=rank)`.
#    Each `recv` has the tag 0. Which ranks return?
#
#    <details><summary>Answer</summary>
#
#    You get `rank 1 hung: not every rank had returned after 60 s`. Only rank 0 returns, because its
#    tag is 0 as well. Rank 1 waits in `send` with tag 1, rank 2 in `recv` for tag 0, and rank 3 for
#    rank 2.
#
#    </details>
#
# 2. In `stages`, change `dist.send(x.grad, dst=rank - 1)` to `dist.send(weight.grad, dst=rank -
#    1)`. The shape is the same. Which ranks get a wrong gradient?
#
#    <details><summary>Answer</summary>
#
#    You get `rank 0/4: got [12.0], should be [24.0] [the gradient of one process, float32[1],
#    gloo]`, and rank 2 has 12 in place of 8, because rank 3 sent 6 in place of 4. Rank 1 is right
#    by accident.
#
#    </details>

# %% [markdown]
# ## Write it yourself
#
# In your folder of [exercises](../README.md#exercises):
#
# ```sh
# collectives practice broadcast_from_sends
# collectives practice running_total
# ```

# %% [markdown]
# ## Read on
#
# - Y. Huang and others, [*GPipe*](https://arxiv.org/abs/1811.06965) (2018): stages that send
#   activations, and micro-batches that keep them busy.
#
# In PyTorch's documentation:
#
# - [`send`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.send)
# - [`recv`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.recv)
#
# Next lesson: [isend_irecv](../notebooks/isend_irecv.ipynb), the same messages without the waiting.
