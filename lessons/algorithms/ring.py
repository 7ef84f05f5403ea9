# %% [markdown]
"""
# ring

An `all_reduce` made of messages: every rank sends to its right neighbour, and receives from its
left one.

You will see which piece every rank sends in each step, what it holds then, and why the busiest rank
cannot send less.

    python lessons/algorithms/ring.py
    torchrun --nproc-per-node 4 lessons/algorithms/ring.py
"""

# %%
from collectives import StepLog, check, run
import torch
import torch.distributed as dist

# %% [markdown]
# ## The idea
#
# Rank 0 holds 1 2 3 4, rank 1 ten times that, rank 2 a hundred times, and so on. After an
# `all_reduce`, every rank holds the sums. The digits of a number tell which ranks are in it: 1010
# is made of rank 1 and rank 3. All lessons of this chapter use these numbers.
#
# The ranks stand in a circle. In each step every rank sends something to the right, and receives
# something from the left. Both happen at the same time: if all ranks sent first, with `send`, each
# would wait for a receiver that is itself sending. `batch_isend_irecv` starts both and returns
# their works.
#
# `StepLog` is told which piece a rank sends in each step, and draws it. It counts the messages and
# bytes itself, below the program, from what reaches the process group. The step fails if they are
# not those that it was told.


# %%
def numbers(rank, world_size, device):
    return torch.arange(1, world_size + 1, device=device) * 10**rank


def exchange(sent, to, received, source):
    operations = [dist.P2POp(dist.isend, sent, to), dist.P2POp(dist.irecv, received, source)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()


# %% [markdown]
# ## The code
#
# ### The ring
#
# The tensor is cut in n pieces. In the first n - 1 steps, each piece travels around the ring once,
# and every rank that it comes to adds its own: a reduce_scatter. Rank r begins with piece r - 1, so
# that it ends with the whole sum of piece r. In the other n - 1 steps the sums travel around the
# ring: an all_gather.

# %% [markdown]
# **Predict first.** Each of four ranks has four numbers of 8 bytes. How many bytes does a rank send
# in all? And rank 0 receives from rank 3, which begins with piece 2: which pieces of rank 0 are
# other numbers after the first step?


# %%
def ring_all_reduce(pieces, rank, n):
    right, left = (rank + 1) % n, (rank - 1) % n
    arriving = torch.empty_like(max(pieces, key=len))
    with StepLog(pieces) as steps:
        for k in range(n - 1):
            out, coming = (rank - 1 - k) % n, (rank - 2 - k) % n
            exchange(pieces[out], right, arriving[: len(pieces[coming])], left)
            pieces[coming] += arriving[: len(pieces[coming])]
            steps.add(pieces, sent=out, to=right)
        for k in range(n - 1):
            out, coming = (rank - k) % n, (rank - 1 - k) % n
            exchange(pieces[out], right, pieces[coming], left)
            steps.add(pieces, sent=out, to=right)
    return steps


def ring(rank, world_size, device):
    x = numbers(rank, world_size, device)
    steps = ring_all_reduce(list(x.tensor_split(world_size)), rank, world_size)

    check(x, numbers(0, world_size, device) * int("1" * world_size), "all_reduce")
    check(steps.messages, 2 * (world_size - 1), "messages sent")
    check(steps.bytes, 2 * (world_size - 1) * x.nbytes // world_size, "bytes sent")
    return {"after": x, "sent": steps}


# %%
if __name__ == "__main__":
    run(ring)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 48: it sends 6 pieces, one in each step. Of rank 0's pieces only piece 2 is another number after
# the first step, the sum of rank 0 and rank 3. It has sent its last piece, and still holds it.
#
# In the picture each panel shows what all ranks hold after a step. Follow a column, which is one
# piece: its sum grows by one rank in each step, until it is whole. Then it is copied from rank to
# rank.
#
# </details>

# %% [markdown]
# ## The count
#
# Every rank sends `2 (n - 1)` pieces of `1/n` of the tensor: `2 (n - 1) / n` tensors, which is less
# than two, however many ranks there are. Each piece needs n - 1 additions and n - 1 copies, and
# each of these needs a message. So all ranks together send at least `2 (n - 1)` tensors, and the
# busiest rank sends at least its share of them. A single rank can send less: a leaf of a
# [tree](../../notebooks/algorithms/tree.ipynb) sends one tensor. So can all ranks, if the switches
# of the network add, as with NVLS
# ([an analysis of NCCL](https://arxiv.org/abs/2507.04786)).
#
# What a ring pays is time. There are `2 (n - 1)` steps, one after the other, and a message has a
# cost of its own, however short it is.
#
# This step counts with a tensor that cannot be cut evenly, and with some that are shorter than the
# ring is long.


# %%
def uneven_ring(rank, world_size, device):
    shares = {}
    for length in (0, 1, 300_001, world_size + 1):
        one = torch.arange(1, length + 1, device=device)
        x = one * 10**rank
        steps = ring_all_reduce(list(x.tensor_split(world_size)), rank, world_size)
        check(x, one * int("1" * world_size), f"{length} numbers")
        shares[f"{length}"] = round(steps.bytes / max(x.nbytes, 1), 3)
    check(shares["300001"], round(2 * (world_size - 1) / world_size, 3), "share of the tensor")
    return shares | {"sent": steps}


# %%
if __name__ == "__main__":
    run(uneven_ring)

# %% [markdown]
# A column shows how many times the size of the tensor a rank has sent. For the long tensor it is
# 1.5 on all ranks: `2 * 3 / 4`. A tensor of one number has pieces without numbers. A library leaves
# out their messages. In the picture, of a tensor with one number more than ranks, piece 0 has two
# numbers, of which the first one is shown.

# %%
STEPS = [ring, uneven_ring]

# %% [markdown]
# ## What libraries do
#
# - NCCL cuts the tensor further, in chunks, and lets several rings run at the same time, each
#   through other links. Between one step and the next it does not copy a chunk to the result: it
#   adds and sends in one go ([an analysis of NCCL](https://arxiv.org/abs/2507.04786)).
# - gloo's `all_reduce` is a ring, too ([its
#   source](https://github.com/pytorch/gloo/blob/main/gloo/allreduce.cc)). It cuts each piece in
#   segments: one of them is under way while another is added.
# - [`ring.py`](../../collectives/algorithms/ring.py) has the same ring as data. The backend
#   `by_hand` executes it: `COLLECTIVES_ALGORITHM=ring collectives run all_reduce --backend by_hand`
#   runs a lesson on it.

# %% [markdown]
# ## Change and try
#
# 1. In `ring`, change `out, coming = (rank - 1 - k) % n, (rank - 2 - k) % n` to `out, coming =
#    (rank - k) % n, (rank - 1 - k) % n`. Many drawings begin so: rank r sends piece r first. What
#    must be changed, too? <details><summary>Answer</summary> You get `rank 0/4: got [1, 20, 300,
#    4000], should be [1111, 2222, 3333, 4444] [all_reduce, int64[4], gloo]`. Rank r now ends with
#    the sum of piece r + 1, and the second loop must begin with that. </details>

# %% [markdown]
# ## Write it yourself
#
# In your folder of [exercises](../../README.md#exercises):
#
# ```sh
# collectives practice all_reduce_as_a_ring
# collectives practice all_gather_as_a_ring
# ```

# %% [markdown]
# ## Read on
#
# - P. Patarasuk and X. Yuan, [*Bandwidth optimal all-reduce
#   algorithms*](https://doi.org/10.1016/j.jpdc.2008.09.002) (2009): the ring, and why nothing sends
#   less.
# - The lesson [reduce_scatter](../../notebooks/reduce_scatter.ipynb): an `all_reduce` is one of
#   these and an `all_gather`.
#
# In PyTorch's documentation:
#
# - [`P2POp`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.P2POp)
# - [`batch_isend_irecv`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.batch_isend_irecv)
# - [`reduce_scatter`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.reduce_scatter)
#
# How do you know that a ring is right? Next lesson:
# [wrong_rings](../../notebooks/algorithms/wrong_rings.ipynb), which tests two that are not.
