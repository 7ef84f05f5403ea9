# %% [markdown]
"""
# doubling: recursive doubling and halving

An `all_reduce` in `log2(n)` steps: in each step, every rank has the sum of twice as many ranks.

A loss is one number, and a ring of 64 ranks needs 126 steps for it, one after the other, though
hardly a byte travels. For such tensors you want few steps. In this lesson you write two algorithms
in which pairs of ranks exchange what they know, and afterwards you can say when few messages are
better than few bytes.

    python lessons/algorithms/doubling.py
    torchrun --nproc-per-node 4 lessons/algorithms/doubling.py
"""

# %%
from collectives import StepLog, check, run
import torch
import torch.distributed as dist

# %% [markdown]
# ## The idea
#
# On a [ring](../../notebooks/algorithms/ring.ipynb), a number reaches one more rank in each step.
# Pairs are faster, because both ranks of a pair learn something. First ranks 0 and 1 exchange their
# tensors, and so do ranks 2 and 3, and each has the sum of two ranks. Then 0 and 2 exchange these
# sums, and so do 1 and 3, and each has the sum of four. The distance of the partners doubles: 1, 2,
# 4, ...
#
# ![Eight ranks exchange their sums in three steps, over the distances 1, 2 and
# 4](../../docs/ideas/doubling.svg)
#
# With eight ranks a third step follows, over the distance 4. An arrow is a message. The stripes of
# a number are the ranks that are in it.


# %%
def numbers(rank, length, device):
    return torch.arange(1, length + 1, device=device) * 10**rank


def exchange(sent, received, peer):
    operations = [dist.P2POp(dist.isend, sent, peer), dist.P2POp(dist.irecv, received, peer)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()


# %% [markdown]
# ## The code
#
# ### If the number of ranks is no power of two
#
# Five ranks do not form pairs, so one of them has to stand aside. Let p be the largest power of two
# that is not greater than n. Ranks p and above pass their tensors to ranks 0, 1, ... first, do
# nothing meanwhile, and get the result afterwards. In `rows`, each row is a piece of the tensor.


# %%
def for_any_number(all_reduce, rows, rank, n):
    power = 1 << (n.bit_length() - 1)
    everything, arriving = range(len(rows)), torch.empty_like(rows)
    with StepLog(rows) as steps:
        if rank >= power:
            dist.send(rows, rank - power)
        if rank + power < n:
            dist.recv(arriving, rank + power)
            rows += arriving
        if n > power:
            steps.add(rows, everything, to=rank - power if rank >= power else None)

        all_reduce(rows, rank, power, steps)

        if rank + power < n:
            dist.send(rows, rank + power)
        if rank >= power:
            dist.recv(rows, rank - power)
        if n > power:
            steps.add(rows, everything, to=rank + power if rank + power < n else None)
    return steps


# %% [markdown]
# ### Recursive doubling
#
# Who is my partner? Flip one bit of your rank, which is `rank ^ distance`. In binary, rank 1 is 01,
# so its partners are 00 and 11.

# %% [markdown]
# **Predict first.** The tensor has 32 bytes. The ring needs 6 steps, and every rank sends 48 bytes.
# How many bytes does a rank send here? Write the number down.


# %%
def recursive_doubling(rows, rank, power, steps):
    arriving, distance = torch.empty_like(rows), 1
    while distance < power:
        if rank < power:
            exchange(rows, arriving, rank ^ distance)
            rows += arriving
        steps.add(rows, sent=range(len(rows)), to=rank ^ distance if rank < power else None)
        distance *= 2


def doubling(rank, world_size, device):
    rows = numbers(rank, 4, device).view(1, 4)
    steps = for_any_number(recursive_doubling, rows, rank, world_size)

    check(rows[0], numbers(0, 4, device) * int("1" * world_size), "all_reduce")
    if world_size in (2, 4, 8):
        check(steps.bytes, (world_size.bit_length() - 1) * rows.nbytes, "bytes sent")
    return {"after": rows[0], "sent": steps}


# %%
if __name__ == "__main__":
    run(doubling, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 64, because it sends the whole tensor twice. So there are 2 steps instead of 6, but more bytes.
# The picture shows the first of the four numbers. Two arrows that cross are an exchange.
#
# </details>

# %% [markdown]
# ### Recursive halving, then doubling
#
# These extra bytes are wasted, because both ranks of a pair compute the same sums. Rabenseifner's
# algorithm divides the work: each rank of a pair keeps one half of the tensor, and sends the other
# half. The parts become smaller in each step, until each rank has the sum of one piece after
# `log2(n)` steps. Then the same pairs exchange sums, in the opposite order, and the parts grow
# again.

# %% [markdown]
# **Predict first.** In the first step, every rank sends half of its 32 bytes. How many bytes does
# it send in all, and in how many steps? Write both numbers down.


# %%
def halving_doubling(rows, rank, power, steps):
    distances = [1 << k for k in range(power.bit_length() - 1)]
    for distance in reversed(distances):
        kept = rank // distance * distance
        given = slice(kept ^ distance, (kept ^ distance) + distance)
        if rank < power:
            arriving = torch.empty_like(rows[given])
            exchange(rows[given], arriving, rank ^ distance)
            rows[kept : kept + distance] += arriving
        sent = range(given.start, given.stop)
        steps.add(rows, sent, to=rank ^ distance if rank < power else None)
    for distance in distances:
        kept = rank // distance * distance
        missing = slice(kept ^ distance, (kept ^ distance) + distance)
        if rank < power:
            exchange(rows[kept : kept + distance], rows[missing], rank ^ distance)
        sent = range(kept, kept + distance)
        steps.add(rows, sent, to=rank ^ distance if rank < power else None)


def halving(rank, world_size, device):
    power = 1 << (world_size.bit_length() - 1)
    rows = numbers(rank, power, device).view(power, 1)
    steps = for_any_number(halving_doubling, rows, rank, world_size)

    check(rows[:, 0], numbers(0, power, device) * int("1" * world_size), "all_reduce")
    if world_size == power:
        check(steps.bytes, 2 * (power - 1) * rows.nbytes // power, "bytes sent")
    return {"after": rows[:, 0], "sent": steps}


# %%
if __name__ == "__main__":
    run(halving, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 48 bytes in 4 steps: 16 + 8 + 8 + 16. That is as few bytes as on the ring, in fewer steps. In the
# picture, the first two steps halve what a rank still adds up, and the last two double what it has.
#
# </details>

# %%
STEPS = [doubling, halving]

# %% [markdown]
# ## The count
#
# For a tensor of S bytes on n ranks, where n is a power of two:
#
# | algorithm | steps | bytes that a rank sends |
# |---|---|---|
# | ring | `2 (n - 1)` | `2 (n - 1) / n * S` |
# | recursive doubling | `log2(n)` | `log2(n) * S` |
# | halving and doubling | `2 log2(n)` | `2 (n - 1) / n * S` |
#
# A message takes a time of its own, the latency, and then a time for each of its bytes, which is
# one over the bandwidth. If S is small, only the steps count, so recursive doubling is the fastest.
# If S is large, only the bytes count, and it is the slowest.
#
# Halving and doubling is good at both ends. Why does anybody still use a ring? The partners of a
# pair are far apart, while neighbours on a ring can share a machine or a switch. And if n is no
# power of two, some ranks send the whole tensor twice more.

# %% [markdown]
# ## What libraries do
#
# - MPICH uses recursive doubling for short tensors, and halving and doubling for long ones ([its
#   source](https://github.com/pmodels/mpich/tree/main/src/mpi/coll/allreduce)).
# - NCCL has rings and trees for `all_reduce`, and where the switches of the network can add also
#   CollNet and NVLS ([an analysis of NCCL](https://arxiv.org/abs/2507.04786)).
# - Our backend `by_hand` uses recursive doubling over sockets for an `all_reduce` of up to 128 KiB,
#   then halving and doubling up to 1024 KiB, and a ring for more.
# - Both are schedules here:
#   [`recursive_doubling.py`](../../collectives/algorithms/recursive_doubling.py) and
#   [`halving_doubling.py`](../../collectives/algorithms/halving_doubling.py).

# %% [markdown]
# ## Change and try
#
# 1. In `doubling`, change `distance *= 2` to `distance += 1`. The partners are now 1, 2 and 3 ranks
#    away. <details><summary>Answer</summary> You get `rank 0/4: got [2222, 4444, 6666, 8888],
#    should be [1111, 2222, 3333, 4444] [all_reduce, int64[4], gloo]`. After the second step
#    everybody has the sum. The third step adds it once more. </details>
# 2. In `halving`, change `for distance in reversed(distances):` to `for distance in distances:`.
#    Now the ranks begin with neighbours, and exchange small parts first.
#    <details><summary>Answer</summary> You get `rank 0/4: got [111, 2022, 3303, 4440], should be
#    [1111, 2222, 3333, 4444] [all_reduce, int64[4], gloo]`. A part must hold all pieces that the
#    next steps divide: the halves become smaller, and so must the distances. </details>

# %% [markdown]
# ## Write it yourself
#
# In your folder of [exercises](../../README.md#exercises):
#
# ```sh
# collectives practice a_scan
# ```

# %% [markdown]
# ## Read on
#
# - R. Thakur, R. Rabenseifner and W. Gropp, [*Optimization of Collective Communication Operations
#   in MPICH*](https://doi.org/10.1177/1094342005051521) (2005): which algorithm for which size.
#
# In an `all_reduce` all ranks do the same. A broadcast has a root, and needs another shape. Next
# lesson: [tree](../../notebooks/algorithms/tree.ipynb).
