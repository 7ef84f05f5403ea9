# %% [markdown]
"""
# send_recv: point-to-point communication, from one rank to another

`send` sends a tensor to one other rank, which receives it with `recv`; no third rank takes part.

A model that is too large for one GPU is cut into stages, one on each rank. A stage hands its
output to the next one, and no other rank needs it. At the end of this lesson you can run a model in
stages, forwards and backwards.

    python lessons/send_recv.py
    torchrun --nproc-per-node 4 lessons/send_recv.py
"""

# %%
from collectives import check, needs, note_calls, run
import torch
import torch.distributed as dist

# %% [markdown]
# ## The calls
#
# ```python
# dist.send(tensor, dst=None, group=None, tag=0, group_dst=None)
# dist.recv(tensor, src=None, group=None, tag=0, group_src=None)
# ```
#
# | argument | meaning |
# |---|---|
# | `tensor` | what is sent, or what is filled |
# | `dst`, `src` | the other rank, in the whole job; `recv` without `src`: any rank |
# | `group` | one that both ranks are in; None is all ranks |
# | `tag` | a number on the message: a `recv` on gloo takes only its own |
# | `group_dst`, `group_src` | the other rank in the group, in place of `dst` or `src` |
#
# Every `send` needs a `recv` on the rank that it names. Only the bytes are sent, so the receiver
# must know the shape and the dtype: it passes a tensor, which `recv` fills. Here each rank adds its
# own number to the one that it received, and sends the sum on.


# %%
@needs(ranks=2)
def send_recv(rank, world_size, device):
    calls = note_calls()  # what this rank calls from here on
    received = torch.tensor([0], device=device)
    if rank > 0:
        dist.recv(received, src=rank - 1)
    x = received + 10**rank
    if rank < world_size - 1:
        dist.send(x, dst=rank + 1)
    # proof: 1 + 10 + 100 + ... up to this rank
    check(x, torch.tensor([(10 ** (rank + 1) - 1) // 9]), "send, recv along a chain")
    neighbours = [rank - 1] * (rank > 0) + [rank + 1] * (rank < world_size - 1)
    check([call.peer for call in calls], neighbours, "from the left, and then to the right")
    return {"received": received if rank > 0 else None, "x": x}


# %%
if __name__ == "__main__":
    run(send_recv)

# %% [markdown]
# This is [reduce](../notebooks/reduce.ipynb) along a [chain](../docs/glossary.md#chain). The
# picture has an arrow for each message: the `recv` of rank 3 ends only when all ranks before it
# have sent.
#
# **Write it yourself**, in your [folder of exercises](../README.md#exercises):
#
# ```sh
# collectives practice neighbours
# ```

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
    run(stages, folded=True)

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
# Stages are one use of messages, and inference has another. Where some GPUs read the prompt and
# others write the answer, the first send the [key-value
# cache](../docs/glossary.md#key-value-cache) to the second.
#
# More to write: `collectives practice exchange_in_pairs`, `collectives practice left_first` and
# `collectives practice broadcast_from_sends`; harder: `collectives practice running_total`,
# `collectives practice whose_message`, `collectives practice a_scan`, `collectives practice
# broadcast_as_a_tree`.

# %%
STEPS = [send_recv, stages]

# %% [markdown]
# ## Pitfalls
#
# - On gloo `send` waits until the receiver takes the message. So if two ranks both send first, no
#   rank calls `recv`, and both wait [until the time limit](../notebooks/mistakes/messages.ipynb): a
#   deadlock. Let one of the two receive first.
# - `send` need not end with the other rank's `recv`, as one reads. It may return before the other
#   rank has the data: it only promises that you may write to the tensor again. gloo waits for the
#   receiver; MPI may keep a copy of a small message.
# - On gloo, a short message leaves the rest of the buffer as it was, and a message longer than the
#   buffer [kills the receiving process](../notebooks/mistakes/buffers.ipynb).
# - On gloo, a rank cannot send to itself: copy the tensor.

# %% [markdown]
# ## On GPUs
#
# - NCCL has no tags (`torch/distributed/distributed_c10d.py`: "``tag`` is not supported with the
#   NCCL backend").
# - NCCL cannot receive from any source: a receive names [one
#   peer](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api/p2p.html).
# - A CPU tensor at one end and a GPU tensor at the other do not meet
#   (`torch/distributed/distributed_c10d.py`: "The ``gloo`` backend will be used for collectives
#   with CPU tensors and the ``nccl`` backend will be used for collectives with CUDA tensors").

# %% [markdown]
# ## Change and try
#
# Make one change, run its cell and the next one, and undo it.
#
# 1. In `send_recv`, change `dist.send(x, dst=rank + 1)` to `dist.send(x, dst=rank + 1, tag=rank)`.
#    Each `recv` has the tag 0. Which ranks return? You see it after a minute, the time limit.
#
#    <details><summary>Answer</summary>
#
#    You get `rank 1 hung: not every rank had returned after 60 s`. Only rank 0 returns, because its
#    tag is 0 as well. Rank 1 waits in `send` with tag 1, rank 2 in `recv` for tag 0, and rank 3 for
#    rank 2.
#
#    </details>

# %% [markdown]
# ## Read on
#
# In PyTorch's documentation:
#
# - [`send`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.send)
# - [`recv`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.recv)
#
# The same messages without the waiting are [isend_irecv](../notebooks/isend_irecv.ipynb). Next
# lesson: [all_gather](../notebooks/all_gather.ipynb), where every rank sends to every other.
