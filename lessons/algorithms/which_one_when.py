# %% [markdown]
"""
# which_one_when

Which algorithm is the fastest depends on the size of the tensor, the number of ranks, and the
network.

You will see simulated times and where they cross, the formulas behind them, measured times beside
them, and what all ranks must agree on.

    python lessons/algorithms/which_one_when.py
    torchrun --nproc-per-node 4 lessons/algorithms/which_one_when.py
"""

# %%
import math
import numpy as np
from collectives import Times, check, computed, looked_up, run
from collectives.algorithms import table
from collectives.algorithms.simulate import Hop, Network, finish_times
import measured
import torch
import torch.distributed as dist

# %% [markdown]
# ## The idea
#
# A message of S bytes takes `latency + S / bandwidth`. That is a simple model. It forgets that
# ranks share a core, a cable or a cache, and that a switch can be busy. But it tells why no
# algorithm is the best at all sizes: some have few messages, others few bytes.
#
# The schedules of this chapter are data, so a program can walk through them without sending
# anything. `finish_times` keeps a clock for each rank. In every step, a message arrives one latency
# after it has left, and then its bytes pass the receiver's port.

# %% [markdown]
# ## The code
#
# ### Where two curves cross
#
# 64 ranks, a latency of 10 µs, and 1 GB/s between any two of them.

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
    run(which_one_when)

# %% [markdown]
# <details><summary>Answer</summary>
#
# For so few bytes recursive doubling: only the steps count, and it has half as many. From 16,384
# bytes on, halving and doubling is faster, because it sends 2 tensors in all instead of 6. The ring
# has the most steps. It comes close to halving and doubling only at the right end of the picture,
# where the steps do not count any more. The binomial tree is the fastest at no size.
#
# </details>

# %% [markdown]
# ### The measured curves
#
# The backend `by_hand` executes the schedules of this chapter over sockets. These times were not
# measured now. They are those of the page [Algorithms](../../docs/algorithms.md): an `all_reduce`
# of 4 ranks, and one of 2, on an idle machine with two cores. `python benchmarks/algorithms.py`
# measures on yours.

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
    run(algorithms_measured)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Closer: the tree takes 0.86 times as long with 4 ranks, and 1.03 times with 2. The model forgets
# what a call costs besides its messages: here, the work of Python. With 4 ranks, two also share a
# core: the tree has the fewest messages, and its idle ranks leave the core to others. For 64 MiB
# the bytes decide, as in the model: recursive doubling is the slowest.
#
# </details>

# %% [markdown]
# ### What all ranks must agree on
#
# A library chooses by size. All ranks must choose the same algorithm: if one took a ring and the
# others a tree, it would wait for messages that nobody sends. Choose only by what all ranks know.
# Here each rank measures the size of its own tensor, and the ranks compare
# their choices before they call.


# %%
def agreed_choice(rank, world_size, device):
    x = torch.ones(1000 * (rank + 1), device=device)
    sizes = [None] * world_size
    dist.all_gather_object(sizes, x.nbytes)
    alone = ["doubling" if size < 10_000 else "ring" for size in sizes]
    together = "doubling" if max(sizes) < 10_000 else "ring"

    check(sizes, [4000 * (one + 1) for one in range(world_size)], "all_gather_object")
    check(len(set(alone)) > 1, world_size > 2, "several choices, if each rank chooses alone")
    choices = [None] * world_size
    dist.all_gather_object(choices, together)
    check(len(set(choices)), 1, "choices, if they choose together")
    return {"bytes": x.nbytes, "would choose alone": alone[rank], "choose together": together}


# %%
if __name__ == "__main__":
    run(agreed_choice)

# %% [markdown]
# In a real `all_reduce` all ranks have the same size, so a choice by size is the same everywhere.
# In an `all_gather` of tensors with different sizes it is not. The backend `by_hand` takes there
# what works for all sizes.

# %%
STEPS = [which_one_when, algorithms_measured, agreed_choice]

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
# The step compares the simulation with these. Recursive doubling and halving and doubling cross
# where `S = log2(n) a / b / (log2(n) - 2 (n - 1) / n)`.

# %% [markdown]
# ### What the calls of the course cost
#
# n is the number of ranks, and S the bytes of the tensor: of the whole result of an all_gather, and
# of what each rank passes to a reduce_scatter.
#
# - **all_reduce.** In a [ring](../../notebooks/algorithms/ring.ipynb) each rank sends a piece of
#   S / n in each of 2 (n - 1) rounds, which is less than 2 S, however many ranks there are. A
#   [tree](../../notebooks/algorithms/tree.ipynb) has only about 2 log2(n) rounds.
# - **broadcast.** A tree has about log2(n) rounds, which is better for small tensors. A chain has
#   n - 1, but with many small pieces all its links work at once.
# - **all_gather** and **reduce_scatter** send (n - 1) / n * S in a ring: half of what an all_reduce
#   sends. If you only want the sum of the pieces of an all_gather, use `all_reduce`: it needs the
#   memory of one piece, and sends 2 / n as much. On gloo a reduce_scatter does not save this half:
#   in torch 2.13 it runs an all_reduce inside, and with a list one for each piece.
# - **send** crosses one link, once. A chain over n ranks takes n - 1 messages, one after the other.
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
# Small tensors cost latency, one delay per round; large ones cost bandwidth. So pack small tensors
# into one call.

# %% [markdown]
# ## What libraries do
#
# - NCCL computes such times for each algorithm and protocol, from tables of latencies and
#   bandwidths in `tuning.cc`, and takes the best. `NCCL_ALGO=Ring` forces one, and
#   `NCCL_DEBUG=INFO` shows what it has found ([its
#   manual](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html)).
# - Open MPI has such tables too, and files in which one can change them ([its
#   manual](https://docs.open-mpi.org/en/main/tuning-apps/coll-tuned.html)).
# - gloo has a ring, in C++. The numbers in the picture of `algorithms_measured` say how many times
#   faster than gloo the fastest one is. Do not conclude that Python beats C++: with 4 ranks gloo
#   takes 6.0 ms for 64 KiB and 7.1 ms for 1 MiB, so most of it is waiting.
# - The backend `by_hand` has a small table, measured over sockets, and takes shared memory before
#   all of it. `COLLECTIVES_ALGORITHM=ring` forces one.

# %% [markdown]
# ## Change and try
#
# 1. In `which_one_when`, change `latency, bandwidth = 64, 10e-6, 1e9` to `latency, bandwidth = 64,
#    160e-6, 1e9`. The latency is 16 times as large. Where do the curves cross?
#    <details><summary>Answer</summary> You get `0 fastest is recursive_doubling, from 262144 bytes
#    on halving_doubling`. The size is 16 times as large, too: only the product of latency and
#    bandwidth counts. </details>

# %% [markdown]
# ## Read on
#
# - The page [Algorithms](../../docs/algorithms.md): what each algorithm sends, how long it takes.
#
# In PyTorch's documentation:
#
# - [`all_gather_object`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_gather_object)
#
# Next lesson: [ring_or_tree](../../notebooks/algorithms/ring_or_tree.ipynb): two claims, tried.
