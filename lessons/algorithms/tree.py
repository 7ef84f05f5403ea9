# %% [markdown]
"""
# tree: broadcast and reduce along a tree

In a broadcast along a tree, the number of ranks that have the data doubles in each step; a reduce
runs the same way backwards.

Rank 0 has loaded a model, and 1,023 other ranks need it. If rank 0 sends it to one after the other,
the last of them waits for 1,023 messages. In this lesson the ranks pass the model on, and ten steps
are enough. You also see who is idle in such a tree, and how two trees at once keep nearly every
rank busy.

    python lessons/algorithms/tree.py
    torchrun --nproc-per-node 4 lessons/algorithms/tree.py
"""

# %%
from collectives import StepLog, check, counting, run
from collectives.algorithms import calls, count
from collectives.algorithms.links import GroupLinks
from trees import Trees
import torch
import torch.distributed as dist

# %% [markdown]
# ## The idea
#
# Rank 0 wants to send a tensor to all others. If it does so itself, it sends n - 1 messages, one
# after the other. But every rank that has the tensor can help: one rank has it at first, then two,
# four, eight, and so on, so all have it after `log2(n)` steps, rounded up. The messages form a
# tree, whose root is rank 0. It is called the binomial tree.
#
# ![A tree with rank 0 as its root and five other ranks, of which the farthest is two messages
# away](../../docs/ideas/tree.svg)
#
# This is the tree of six ranks. The number at an arrow is the step in which the message is sent.


# %%
def numbers(rank, length, device):
    return torch.arange(1, length + 1, device=device) * 10**rank


def distances(n):
    return [1 << k for k in range((n - 1).bit_length())]


# %% [markdown]
# ## Down the tree
#
# The first message goes half of the way, to rank 2 of 4 or rank 4 of 8, so that each half of the
# ranks has one that can serve it. Then the distance is halved in each step. A rank receives once,
# and from then on it sends in each step. If n is no power of two, some distances lead past the last
# rank, and nothing is sent there.

# %% [markdown]
# **Predict first.** How many messages do all four ranks send together, in how many steps? Write
# both numbers down.


# %%
def down(x, rank, n):
    with StepLog([x if rank == 0 else None]) as steps:
        for distance in reversed(distances(n)):
            gives = rank % (2 * distance) == 0 and rank + distance < n
            if gives:
                dist.send(x, rank + distance)
            if rank % (2 * distance) == distance:
                dist.recv(x, rank - distance)
            has_it = rank % distance == 0
            steps.add([x if has_it else None], sent=0, to=rank + distance if gives else None)
    return steps


def tree(rank, world_size, device):
    x = numbers(0, 4, device) if rank == 0 else torch.full((4,), -1, device=device)
    steps = down(x, rank, world_size)

    check(x, numbers(0, 4, device), "broadcast")
    check(len(steps.sent), len(distances(world_size)), "steps")
    return {"after": x, "sent": steps, "eight ranks": Trees("binomial_tree", 8)}


# %%
if __name__ == "__main__":
    run(tree, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 3 messages in 2 steps, because every rank but the root receives exactly one. The second picture
# shows eight ranks.
#
# </details>

# %% [markdown]
# ## Up the tree and down again
#
# A tree also works upwards. If the messages go the other way, in the opposite order, and every rank
# adds what arrives, the root ends with the sum, which is a reduce. A broadcast down the same tree
# then completes an `all_reduce`.

# %% [markdown]
# **Predict first.** How many messages does the root receive on the way up, and how many does rank
# 3, the last one, receive? Write both numbers down.


# %%
def up(x, rank, n):
    with StepLog([x]) as steps:
        for distance in distances(n):
            gives = rank % (2 * distance) == distance
            if gives:
                dist.send(x, rank - distance)
            elif rank % (2 * distance) == 0 and rank + distance < n:
                arriving = torch.empty_like(x)
                dist.recv(arriving, rank + distance)
                x += arriving
            steps.add([x], sent=0, to=rank - distance if gives else None)
    return steps


def up_and_down(rank, world_size, device):
    x = numbers(rank, 4, device)
    upwards = up(x, rank, world_size)
    downwards = down(x, rank, world_size)

    check(x, numbers(0, 4, device) * int("1" * world_size), "all_reduce")
    check(upwards.messages, int(rank > 0), "messages to the parent")
    check(len(upwards.sent), len(distances(world_size)), "steps on the way up")
    return {"after": x, "up": upwards, "down": downwards}


# %%
if __name__ == "__main__":
    run(up_and_down, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# The root receives 2, and rank 3 none, because no rank lies behind it: it is a leaf of the tree. So
# in each step some ranks are idle. All ranks together send 3 + 3 messages. On a
# [ring](../../notebooks/algorithms/ring.ipynb) they send four times as many, each of a quarter of
# the size, and nobody is idle.
#
# </details>

# %% [markdown]
# ## Two trees at once
#
# Can a tree be as busy as a ring? A long tensor can be cut into chunks, so that a rank passes on
# one chunk while it receives the next. In a chain, where each rank passes on to one other, this
# keeps all ranks busy, but the first chunk reaches the last rank only after n - 1 steps. A binary
# tree is not so deep, but a rank in its middle sends each chunk to two children, and half of the
# ranks, the leaves, send nothing.
#
# So take two trees, and send one half of the tensor down each. Rank 0 serves the top of both. The
# second tree has the other ranks in reverse order or one place further, so that a leaf of one tree
# is in the middle of the other. Then each rank has two children in one tree only, and because it
# sends half a tensor to each of them, it sends one tensor in all, as much as it receives.
#
# The hard part is the timetable, because no rank may send to two others, or receive from two, in
# the same step. So each link is used in even steps or in odd steps only. The schedule is
# [`double_tree.py`](../../collectives/algorithms/double_tree.py). `double_tree` runs it on your
# four ranks, and its picture is computed for eight.

# %% [markdown]
# **Predict first.** In the first tree of eight ranks, rank 4 passes its half on to two others, and
# rank 5 passes it on to nobody. What do they do in the second tree? Is there a rank that is a leaf
# in both?


# %%
def double_tree(rank, world_size, device):
    x = numbers(0, 8, "cpu") if rank == 0 else torch.full((8,), -1)
    links = GroupLinks(dist.new_group(backend="gloo"))
    with counting() as sent:
        calls.broadcast(links, x, 0, "double_tree")
    check(x, numbers(0, 8, "cpu"), "broadcast")

    schedule = count.traffic("broadcast", "double_tree", world_size, x.nbytes)
    check(sent["c10d.send"].bytes, schedule.sent[rank], "bytes sent, and those of the schedule")
    n = 8
    trees = Trees("double_tree", n, number=2)
    first, second = trees.leaves()
    check(sorted(set(first) & set(second)), [n - 1], "leaves of both trees")
    schedule = count.traffic("broadcast", "double_tree", n, 2**20)
    check(schedule.busiest(), 2**20, "bytes that the busiest of 8 ranks sends or receives")
    return {"after": x, "eight ranks": trees}


# %%
if __name__ == "__main__":
    run(double_tree, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Rank 4 is a leaf in the second tree, and rank 5 is in its middle. Only rank 7 is a leaf in both:
# each tree of seven ranks has four leaves, and the middle of the other tree has room for three of
# them.
#
# </details>

# %%
STEPS = [tree, up_and_down, double_tree]

# %% [markdown]
# ## The count
#
# This is what a broadcast of S bytes to n ranks costs. The chain and the double tree send k chunks:
#
# | algorithm | steps | bytes that the busiest rank sends |
# |---|---|---|
# | the root sends to each | `n - 1` | `(n - 1) S` |
# | binomial tree | `log2(n)` | `log2(n) S` |
# | chain of chunks | `k + n - 2` | `S` |
# | double binary tree | about `k + 2 log2(n)` | `S` |
#
# The double tree has the bandwidth of a chain and nearly the latency of a tree, which is why it can
# replace a ring among thousands of ranks.

# %% [markdown]
# ## What libraries do
#
# - NCCL has double binary trees since version 2.4, for `all_reduce` ([its
#   article](https://developer.nvidia.com/blog/massively-scale-deep-learning-training-nccl-2-4/)).
#   The trees connect nodes. Inside a node the GPUs form a chain ([an analysis of
#   NCCL](https://arxiv.org/abs/2507.04786)).
# - gloo's `broadcast` is a binomial tree ([its
#   source](https://github.com/pytorch/gloo/blob/main/gloo/broadcast.cc)).
# - Our backend `by_hand` uses a binomial tree over sockets for a `broadcast` or a `reduce` of up to
#   256 KiB.

# %% [markdown]
# ## Change and try
#
# 1. In `tree`, change `in reversed(distances(n)):` to `in distances(n):`. Now the first message
#    goes to the neighbour. What does rank 3 have in the end? <details><summary>Answer</summary> You
#    get `rank 3/4: got [-1, -1, -1, -1], should be [1, 2, 3, 4] [broadcast, int64[4], gloo]`,
#    because rank 3 receives from rank 2 in the first step, when rank 2 has nothing yet. </details>

# %% [markdown]
# ## Write it yourself
#
# In your folder of [exercises](../../README.md#exercises):
#
# ```sh
# collectives practice broadcast_as_a_tree
# collectives practice reduce_on_any_root
# ```

# %% [markdown]
# ## Read on
#
# - P. Sanders, J. Speck and J. L. Träff, [*Two-tree algorithms for full bandwidth broadcast,
#   reduction and scan*](https://doi.org/10.1016/j.parco.2009.09.001) (2009).
#
# A tree starts from one root, but in `all_gather` and in `all_to_all` every rank has something for
# all others. Next lesson: [bruck](../../notebooks/algorithms/bruck.ipynb), in which these calls
# need few steps, too.
