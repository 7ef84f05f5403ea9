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
# ### The measured curves
#
# The backend `by_hand` executes the schedules of this chapter over sockets. These times were not
# measured now. They are those of the page [Algorithms](../../docs/algorithms.md): an `all_reduce`
# of 4 ranks on an idle machine with two cores. `python benchmarks/algorithms.py` measures on yours.


# %%
@looked_up
def algorithms_measured(rank, world_size, device):
    names = ("ring", "recursive_doubling", "halving_doubling", "binomial_tree")
    times = Times(measured.times(*names, "gloo"), against="gloo", where=measured.where())
    fastest = [name for _, name in times.fastest()]
    check(fastest, ["recursive_doubling", "binomial_tree", "halving_doubling", "ring"], "fastest")
    return {"times": times}


# %% [markdown]
# **Predict first.** In the model, the binomial tree is the fastest at no size. Four ranks on two
# cores are not in the model: a rank that has a message must wait for a core. Which algorithm wins
# from that?

# %%
if __name__ == "__main__":
    run(algorithms_measured)

# %% [markdown]
# <details><summary>Answer</summary>
#
# The binomial tree, at 1048576 bytes: it has the fewest messages in all. Short tensors go fastest
# by recursive doubling, and long ones by the ring, as in the model.
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
# ## What libraries do
#
# - NCCL computes such times for each algorithm and protocol, from tables of latencies and
#   bandwidths in `tuning.cc`, and takes the best. `NCCL_ALGO=Ring` forces one, and
#   `NCCL_DEBUG=INFO` shows what it has found ([its
#   manual](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html)).
# - Open MPI has such tables too, and files in which one can change them ([its
#   manual](https://docs.open-mpi.org/en/main/tuning-apps/coll-tuned.html)).
# - gloo has a ring, in C++. The numbers in the picture of `algorithms_measured` say how many times
#   faster than gloo the fastest one is. Do not conclude that Python beats C++: gloo takes 6.1 ms
#   for 64 KiB and 6.8 ms for 1 MiB, so most of it is waiting.
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
