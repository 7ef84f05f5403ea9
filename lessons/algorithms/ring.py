# %% [markdown]
"""
# ring: ring all-reduce, step by step

An `all_reduce` made of messages: every rank sends to its right neighbour, and receives from its
left one.

You call `all_reduce`, and the sum is there. But which bytes travelled, and does a call among 64
ranks cost 16 times as much as one among four? In this lesson you write the call yourself, from
messages between neighbours, and see why no rank has to send more than twice its tensor.

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
# The ranks stand in a circle. In each step every rank sends something to the right, and receives
# something from the left. Both must happen at the same time, because if all ranks sent first, with
# `send`, each would wait for a receiver that is itself sending. So the program calls
# `batch_isend_irecv`, which starts both and returns their works.
#
# Rank 0 holds 1 2 3 4, rank 1 ten times that, rank 2 a hundred times, and so on. The digits of a
# number then show which ranks are in it: 1010 is a sum of rank 1 and rank 3. All lessons of this
# chapter use these numbers.
#
# ![Three ranks in a circle add up three numbers in four steps](../../docs/ideas/ring.svg)
#
# This is a ring of three ranks. An arrow is a message, and what has just arrived has a thick edge.
# After two steps one number of each rank is the sum of all, and after two more every rank has every
# sum.
#
# The program passes each step to a `StepLog`, which draws it. A `StepLog` also counts messages and
# bytes, below the program, where they reach the process group. If its count differs from the steps
# that it was passed, the proof fails.


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
# Cut the tensor into n pieces. In the first n - 1 steps, each piece travels around the ring once,
# and every rank that it reaches adds its own piece to it. This half is a reduce_scatter. Rank r
# begins with piece r - 1, so that it ends with the whole sum of piece r. In the other n - 1 steps
# these sums travel around the ring, which is an all_gather.

# %% [markdown]
# **Predict first.** Each of four ranks has four numbers of 8 bytes. How many bytes does a rank send
# in all? And rank 0 receives from rank 3, which begins with piece 2: which pieces of rank 0 have
# changed after the first step?


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
    run(ring, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 48: it sends 6 pieces, one in each step. After the first step only piece 2 of rank 0 has changed,
# to the sum of rank 0 and rank 3. Rank 0 has sent its last piece, but still holds it.
#
# In the picture each panel shows what all ranks hold after a step. Follow a column, which is one
# piece: its sum grows by one rank in each step until it is complete, and then it is copied from
# rank to rank.
#
# </details>

# %% [markdown]
# ## The count
#
# Every rank sends `2 (n - 1)` pieces of `1/n` of the tensor. That is `2 (n - 1) / n` tensors, and
# so less than two, however many ranks there are. Could it be less? Each piece needs n - 1 additions
# and n - 1 copies, and each of these needs a message, so all ranks together send at least
# `2 (n - 1)` tensors, and the busiest rank at least its share of them. A single rank can send less,
# such as a leaf of a [tree](../../notebooks/algorithms/tree.ipynb), and so can all ranks if the
# switches of the network add, as with NVLS ([an analysis of
# NCCL](https://arxiv.org/abs/2507.04786)).
#
# What a ring pays instead is time, because its `2 (n - 1)` steps come one after the other, and even
# the shortest message takes a while.
#
# So far the tensor could be cut evenly. The next step takes one that cannot, and some that are
# shorter than the ring is long.


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
# The columns show how many times the size of its tensor a rank has sent. For the long tensor this
# is 1.5 on all ranks, `2 * 3 / 4`, as if it had been cut evenly. A tensor of one number has pieces
# without numbers, and a library leaves out their messages. The picture is of the tensor with one
# number more than ranks: piece 0 has two numbers, and shows the first.

# %%
STEPS = [ring, uneven_ring]

# %% [markdown]
# ## What libraries do
#
# - NCCL cuts the tensor further, into chunks, and several of its rings run at the same time, each
#   through other links. It adds a chunk and sends it on in one go, without a copy to the result in
#   between ([an analysis of NCCL](https://arxiv.org/abs/2507.04786)).
# - gloo's `all_reduce` is a ring, too ([its
#   source](https://github.com/pytorch/gloo/blob/main/gloo/allreduce.cc)). It cuts each piece into
#   segments, so that one is under way while another is added.
# - [`ring.py`](../../collectives/algorithms/ring.py) has the same ring as data, for the backend
#   `by_hand`: `COLLECTIVES_ALGORITHM=ring collectives run all_reduce --backend by_hand` runs a
#   lesson on it.

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
#
# How do you know that a ring is right? Next lesson:
# [wrong_rings](../../notebooks/algorithms/wrong_rings.ipynb), which tests two that are not.
