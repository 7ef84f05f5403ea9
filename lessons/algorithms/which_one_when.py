# %% [markdown]
"""
# which_one_when

Which algorithm is the fastest depends on the size of the tensor, the number of ranks, and the
network.

You will see simulated times and where they cross, the formulas behind them, and two well-known
sentences tried: "a ring below 32 GPUs, a tree above 512", and "up to 180 times faster".

    python lessons/algorithms/which_one_when.py
    torchrun --nproc-per-node 4 lessons/algorithms/which_one_when.py
"""

# %%
import math
import numpy as np
from collectives import Times, check, computed, run
from collectives.algorithms import table
from collectives.algorithms.simulate import Hop, Network, finish_times
from latencies import ASSUMPTIONS, ring_time, tree_time
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


# %% [markdown]
# **Predict first.** Recursive doubling has 6 steps, and halving and doubling 12. How much longer
# does the latter take for 4 bytes? Write the factor down.

# %%
if __name__ == "__main__":
    run(which_one_when)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 12 / 6 = 2: for 4 bytes only the steps count. From some size on, which the step prints, it is
# faster, because it sends 2 tensors in all instead of 6. The ring has the most steps. It comes
# close to halving and doubling only at the right end of the picture, where the steps do not count
# any more. The binomial tree is the fastest at no size: in this model nothing speaks for its few
# messages. Where ranks share cores, as on one machine, these do count.
#
# </details>

# %% [markdown]
# ### "A ring below 32 GPUs, a tree above 512"
#
# Such rules name a number of ranks. Here the ring and the double tree of
# [tree](../../notebooks/algorithms/tree.ipynb) take 64 KiB, 1 MiB and 64 MiB on 16, 128 and 1024
# ranks, with a latency of 10 µs and 10 GB/s. The step divides the time of the ring by that of the
# tree.


# %%
@computed
def rule_of_thumb(rank, world_size, device):
    latency, bandwidth, found = 10e-6, 10e9, {}
    for n in (16, 128, 1024):
        for nbytes in (2**16, 2**20, 2**26):
            ring = seconds("ring", n, nbytes, latency, bandwidth)
            found[n, nbytes] = ring / seconds("double_tree", n, nbytes, latency, bandwidth)

    faster = [size for size, ratio in found.items() if ratio > 1]
    check(faster, [(16, 2**16), (128, 2**16), (128, 2**20), *list(found)[-3:]], "tree is faster")
    return {
        f"{n} ranks": [round(ratio, 2) for (ranks, _), ratio in found.items() if ranks == n]
        for n in (16, 128, 1024)
    }


# %% [markdown]
# **Predict first.** Is there a size at which the tree is faster on 16 ranks, or one at which the
# ring is faster on 128?

# %%
if __name__ == "__main__":
    run(rule_of_thumb)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Both. The tree is 1.81 times as fast for 64 KiB on 16 ranks. On 128 ranks the ring is faster for
# 64 MiB: 0.82 is less than 1. So the two cross at a number of bytes, and this number grows with the
# ranks. On 1024 ranks the tree is still 1.72 times as fast for 64 MiB.
#
# </details>

# %% [markdown]
# ### "Up to 180 times faster"
#
# In 2019 NVIDIA measured that double binary trees make an `all_reduce` up to 180 times faster than
# rings, on 24,576 GPUs ([its
# article](https://developer.nvidia.com/blog/massively-scale-deep-learning-training-nccl-2-4/)). We
# have no such machine. But NCCL chooses by a table of latencies in its source
# ([`tuning.cc`](https://github.com/NVIDIA/nccl/blob/v2.5.6-1/src/graph/tuning.cc)), for each of its
# three protocols, LL, LL128 and Simple. `latencies.py` beside this lesson has those of 2019 and
# 2020. What does this table predict?
#
# Read a table together with the comment above it. Here it says: "Tree/Simple is the latency a 256kB
# chunk, which is ~ base lat + 256k/12GB/s (+ 256k/12GB/s for the network)". So 28 and 50 µs for a
# hop of the tree are mostly transfer. It does not belong to an empty tensor. `latencies.py`
# subtracts it: 6.2 and 6.3 µs are left.
#
# The step simulates 4,096 nodes with 6 GPUs each, and an empty tensor. It divides the time of the
# ring by that of the tree.


# %%
@computed
def claim_of_180(rank, world_size, device):
    n, per_node = 24_576, 6
    times = {
        one.name: (ring_time(one, n, per_node), tree_time(one, n, per_node)) for one in ASSUMPTIONS
    }
    ratios = {name: round(ring / tree) for name, (ring, tree) in times.items()}

    hops_in_tree = 2 * (per_node - 1 + math.log2(n // per_node))
    check(ratios["every hop alike"], round(2 * (n - 1) / hops_in_tree), "hops of ring and tree")
    check(min(ratios.values()) > 180, True, "more than 180")
    ring, tree = times["LL, 2019"]
    slower_tree = {"ms of the tree": 1000 * tree, "for 180": 1000 * ring / 180}
    return ratios | slower_tree


# %% [markdown]
# **Predict first.** Is the measured 180 inside what the table predicts, below it, or above it? If
# all hops were alike, only their number would count: `2 * 24575` on the ring, and in the tree 5
# inside a node and 12 between the 4,096 nodes, up and down again, which are 34.

# %%
if __name__ == "__main__":
    run(claim_of_180)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Below all of it: the table predicts 319 to 1523. If every hop takes the same time, the ratio is
# 1446.
#
# Why is the measured number lower? The tree is so fast that little is enough: with LL of 2019 it
# takes 0.1294 ms, and if it took 0.2458 ms, the ratio would be 180. A table has one latency for
# every hop. A real `all_reduce` also starts a program on each GPU, and its hops between nodes
# cross several switches and wait for the slowest node. The long time of the ring hardly notices
# this, and the short time of the tree doubles.
#
# And all of this holds for an empty tensor. For a large one the bandwidth decides, as above.
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
    return {"bytes": x.nbytes, "would choose alone": alone[rank], "choose together": together}


# %%
if __name__ == "__main__":
    run(agreed_choice)

# %% [markdown]
# In a real `all_reduce` all ranks have the same size, so a choice by size is the same everywhere.
# In an `all_gather` of tensors with different sizes it is not. The backend `by_hand` takes there
# what works for all sizes.

# %%
STEPS = [which_one_when, rule_of_thumb, claim_of_180, agreed_choice]

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
# ## What libraries do
#
# - NCCL computes such times for each algorithm and protocol, from tables of latencies and
#   bandwidths in `tuning.cc`, and takes the best. `NCCL_ALGO=Ring` forces one, and
#   `NCCL_DEBUG=INFO` shows what it has found ([its
#   manual](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html)).
# - Open MPI has such tables too, and files in which one can change them ([its
#   manual](https://docs.open-mpi.org/en/main/tuning-apps/coll-tuned.html)).
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
# 2. In `claim_of_180`, change `n, per_node = 24_576, 6` to `n, per_node = 24, 6`.
#    <details><summary>Answer</summary> You get `rank 0/4: got False, should be True [more than 180,
#    gloo]`. On 24 GPUs the tree is nowhere that much faster: with every hop alike, it is 3 times.
#    </details>

# %% [markdown]
# ## Write it yourself
#
# Find the size at which recursive doubling and halving and doubling take the same time, by
# bisection with `seconds`. Compare it with the formula.
#
# <details><summary>Answer</summary>
#
# ```python
# def crossing_point(rank, world_size, device):
#     n, latency, bandwidth = 64, 10e-6, 1e9
#     low, high = 1.0, 2.0**30
#     while high / low > 1 + 1e-9:
#         middle = math.sqrt(low * high)
#         doubling, halving = (
#             seconds(name, n, middle, latency, bandwidth)
#             for name in ("recursive_doubling", "halving_doubling")
#         )
#         low, high = (middle, high) if doubling < halving else (low, middle)
#     steps = math.log2(n)
#     formula = steps * latency * bandwidth / (steps - 2 * (n - 1) / n)
#     check(torch.tensor(low), torch.tensor(formula), "crossing point", rtol=1e-6)
#     return {"bytes": round(low)}
# ```
#
# ```text
# crossing_point: proved on all 4 ranks
#   rank  bytes
#   0     14884
#   1     14884
#   2     14884
#   3     14884
# ```
#
# </details>

# %% [markdown]
# ## Read on
#
# - The page [Algorithms](../../docs/algorithms.md): what each algorithm sends, how long it takes.
# - S. Jeaugey, [*Massively Scale Your Deep Learning Training with NCCL
#   2.4*](https://developer.nvidia.com/blog/massively-scale-deep-learning-training-nccl-2-4/), 2019.
#
# In PyTorch's documentation:
#
# - [`all_gather_object`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_gather_object)
#
# Next lesson: [same_bits](../../notebooks/algorithms/same_bits.ipynb).
