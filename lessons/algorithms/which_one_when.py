# %% [markdown]
"""
# which_one_when: latency, bandwidth and the fastest algorithm

Which algorithm is the fastest depends on the size of the tensor, the number of ranks, and the
network.

A library has four algorithms for the same call, and you have a tensor. Which of them should run?
And if your step waits for the network, do you pay for latency or for bandwidth? In this lesson you
answer both from four numbers: the size of the tensor, the number of ranks, the latency and the
bandwidth. You also see where measured times say something else, and what to do about latency.

    python lessons/algorithms/which_one_when.py
    torchrun --nproc-per-node 4 lessons/algorithms/which_one_when.py
"""

# %%
import math
import numpy as np
from collectives import Times, check, computed, counting, looked_up, run
from collectives.algorithms import calls, table
from collectives.algorithms.links import GroupLinks
from collectives.algorithms.simulate import Hop, Network, finish_times
import measured
import torch
import torch.distributed as dist

# %% [markdown]
# ## The idea
#
# A message of S bytes takes `latency + S / bandwidth`. This model is simple: it forgets that ranks
# share a core, a cable or a cache, and that a switch can be busy. But it explains why no algorithm
# is the best at all sizes, because some save messages and others save bytes.
#
# The schedules of this chapter are data, so a program can walk through them without sending
# anything. `finish_times` keeps a clock for each rank: in every step a message arrives one latency
# after it has left, and then its bytes pass the receiver's port.

# %% [markdown]
# ## The code
#
# ### Where two curves cross
#
# Take 64 ranks, with a latency of 10 µs and 1 GB/s between any two of them. The step simulates four
# algorithms, and compares each time with the formulas below "The count".

# %% [markdown]
# **Predict first.** On 64 ranks recursive doubling has 6 steps, halving and doubling and the
# binomial tree 12, and the ring 126. Which of the four is the fastest for 4 bytes, which one for 64
# MiB, and is one the fastest at no size?


# %%
def seconds(name, n, nbytes, latency, bandwidth):
    algorithm = table.find("all_reduce", name, n)
    pieces, ranks, hop = algorithm.pieces(n, nbytes, n), np.arange(n), Hop(latency, bandwidth)
    schedule = algorithm.steps(ranks, n, pieces, n)
    return float(finish_times(schedule, ranks, nbytes / pieces, Network(n, hop, hop)).max())


@computed
def which_one_when(rank, world_size, device):
    n, latency, bandwidth = 64, 10e-6, 1e9
    sizes = [4**k for k in range(1, 15)]
    names = ("ring", "recursive_doubling", "halving_doubling", "binomial_tree")
    times = {
        name: [(size, seconds(name, n, size, latency, bandwidth)) for size in sizes]
        for name in names
    }

    steps, share = math.log2(n), 2 * (n - 1) / n
    formulas = {
        "ring": (2 * (n - 1), share),
        "recursive_doubling": (steps, steps),
        "halving_doubling": (2 * steps, share),
        "binomial_tree": (2 * steps, 2 * steps),
    }
    for name, (messages, tensors) in formulas.items():
        expected = [messages * latency + tensors * size / bandwidth for size in sizes]
        got = torch.tensor([time for _, time in times[name]])
        check(got, torch.tensor(expected), name, rtol=1e-6)
    return {"times": Times(times)}


# %%
if __name__ == "__main__":
    run(which_one_when, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# For so few bytes it is recursive doubling, because only the steps count, and it has half as many.
# From 16,384 bytes on it is halving and doubling, because it sends 2 tensors in all instead of 6.
# The ring has the most steps, so it comes close to halving and doubling only at the right end of
# the picture, where steps do not count any more. The binomial tree is the fastest at no size.
#
# </details>

# %% [markdown]
# ### The measured curves
#
# How far can you trust such a model? The backend `by_hand` executes the same schedules over
# sockets, and the page [Algorithms](../../docs/algorithms.md) has times of an `all_reduce` of 4
# ranks, and of 2, on an idle machine with two cores. This step looks them up, because yours may be
# busy now. `python benchmarks/algorithms.py` measures on your machine.

# %% [markdown]
# **Predict first.** For 4 bytes, the model says that a binomial tree takes twice as long as
# recursive doubling, because it has twice as many steps. Are the measured times further apart, or
# closer?


# %%
@looked_up
def algorithms_measured(rank, world_size, device):
    names, found = ("ring", "recursive_doubling", "halving_doubling", "binomial_tree"), {}
    for ranks in (4, 2):
        curves = measured.times(ranks, *names)
        slowest = max(names, key=lambda name: curves[name][-1])
        check(slowest, "recursive_doubling", "the slowest for 64 MiB")
        (_, tree), (_, doubling) = curves["binomial_tree"][0], curves["recursive_doubling"][0]
        found[f"tree / doubling, {ranks} ranks"] = round(tree / doubling, 2)
        gloo = measured.times(ranks, "gloo")
        found[f"{ranks} ranks"] = Times(curves | gloo, "gloo", measured.where(ranks))
    return found


# %%
if __name__ == "__main__":
    run(algorithms_measured, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Closer: the tree takes 0.86 times as long with 4 ranks, and 1.03 times with 2. The model forgets
# what a call costs besides its messages, which is here the work of Python. And it forgets that with
# 4 ranks two share a core: the tree has the fewest messages, so its idle ranks leave the core to
# others. For 64 MiB the bytes decide, as in the model, and recursive doubling is the slowest.
#
# </details>

# %% [markdown]
# ### Many small tensors
#
# Where latency decides, more bandwidth does not help, but fewer calls do. This step reduces 100
# small tensors by recursive doubling over messages of gloo: first each in a call of its own, and
# then all in one call, packed into one tensor. It counts what a rank sends, and simulates both with
# the latency and bandwidth from above.

# %% [markdown]
# **Predict first.** What does a rank send less of when the tensors are packed: messages, bytes, or
# both?


# %%
def packed(rank, world_size, device):
    links = GroupLinks(dist.new_group(backend="gloo"))
    one = torch.arange(1, 11)
    tensors = [one * k * 10**rank for k in range(1, 101)]
    flat = torch.cat(tensors)

    with counting() as each:
        for x in tensors:
            calls.all_reduce(links, x, dist.ReduceOp.SUM, "recursive_doubling")
    with counting() as together:
        calls.all_reduce(links, flat, dist.ReduceOp.SUM, "recursive_doubling")
    # proof
    sums = [one * k * int("1" * world_size) for k in range(1, 101)]
    check(tensors, sums, "a call for each")
    check(list(flat.split(10)), sums, "one call")
    each, together = each["c10d.send"], together["c10d.send"]
    check(each.bytes, together.bytes, "bytes sent")
    check(each.calls, 100 * together.calls, "messages sent")
    alone, all_at_once = (
        seconds("recursive_doubling", world_size, nbytes, 10e-6, 1e9) for nbytes in (80, 8000)
    )
    return {
        "messages": [each.calls, together.calls],
        "bytes": [each.bytes, together.bytes],
        "simulated µs": [round(1e6 * 100 * alone), round(1e6 * all_at_once)],
    }


# %%
if __name__ == "__main__":
    run(packed, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Only messages: 200 become 2, and the bytes are 16,000 in both cases. The simulated time falls from
# 2016 to 36 µs, because nearly all of it was latency. This is why DDP packs gradients in
# [buckets](../../notebooks/training/buckets.ipynb).
#
# </details>

# %%
STEPS = [which_one_when, algorithms_measured, packed]

# %% [markdown]
# ## The count
#
# For a latency a, and b seconds for each byte of a tensor of S bytes, on n ranks, n a power of two:
#
# | algorithm | time |
# |---|---|
# | ring | `2 (n - 1) a + 2 (n - 1) / n * S b` |
# | recursive doubling | `log2(n) a + log2(n) S b` |
# | halving and doubling | `2 log2(n) a + 2 (n - 1) / n * S b` |
# | binomial tree, up and down | `2 log2(n) a + 2 log2(n) S b` |
#
# Recursive doubling and halving and doubling cross where
# `S = log2(n) a / b / (log2(n) - 2 (n - 1) / n)`. For smaller tensors you pay for latency, for
# larger ones for bandwidth.

# %% [markdown]
# ### The other calls
#
# An **all_gather** or a **reduce_scatter** of S bytes in all sends `(n - 1) / n * S` in a ring,
# half of an all_reduce. If you only want the sum of the pieces of an all_gather, use `all_reduce`:
# it needs the memory of one piece, and sends 2 / n as much. On gloo a reduce_scatter saves nothing,
# because in torch 2.13 it runs an all_reduce inside.
#
# These are milliseconds on gloo, with four ranks on two cores (`collectives bench bus all_reduce -n
# 4 -b 4KiB -e 16MiB -f 4096`, and the same of the other calls), and of a message between two ranks
# (`python benchmarks/lesson_costs.py`):
#
# | | all_reduce | broadcast | all_gather | reduce_scatter | send |
# |---|---|---|---|---|---|
# | 4 KiB | 6.4 | 1 | 3.2 | - | 0.07 |
# | 16 MiB | 31 | - | - | 68 | 4.8 |
#
# The calls of 4 KiB cost mostly latency, and those of 16 MiB mostly bandwidth.

# %% [markdown]
# ## What libraries do
#
# - NCCL computes such times from tables of latencies and bandwidths in `tuning.cc`, and chooses the
#   best algorithm. `NCCL_ALGO=Ring` forces one, and `NCCL_DEBUG=INFO` shows what it has found ([its
#   manual](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html)).
# - All ranks must choose the same algorithm, or one waits for messages that nobody sends. So a
#   library chooses by what all ranks know, such as the size of an `all_reduce`.
# - gloo has a ring, in C++. The numbers in the picture of `algorithms_measured` say how many times
#   faster than gloo the fastest one is. Do not conclude that Python beats C++: with 4 ranks gloo
#   takes 6.0 ms for 64 KiB and 7.1 ms for 1 MiB, so most of it is waiting.

# %% [markdown]
# ## Change and try
#
# 1. In `which_one_when`, change `latency, bandwidth = 64, 10e-6, 1e9` to `latency, bandwidth = 64,
#    160e-6, 1e9`, a latency 16 times as large. Where do the curves cross?
#    <details><summary>Answer</summary> You get `0 fastest is recursive_doubling, from 262144 bytes
#    on halving_doubling`. The size is 16 times as large, too: only the product of latency and
#    bandwidth counts. </details>

# %% [markdown]
# ## Read on
#
# You can now check what others say about rings and trees. Next lesson:
# [ring_or_tree](../../notebooks/algorithms/ring_or_tree.ipynb), where two well-known claims are
# tried.
