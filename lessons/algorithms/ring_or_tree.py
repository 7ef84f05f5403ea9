# %% [markdown]
"""
# ring_or_tree: two claims on which is faster, simulated

Two well-known claims on rings and trees, tried with the simulation of which_one_when.

You have read that you need a tree above 512 GPUs, or that a tree is 180 times as fast as a ring,
and you wonder what that means for your cluster. Nobody lends you 24,576 GPUs to try it. But you can
simulate them, and in this lesson you see where the first claim is false, and what the second one is
about.

    python lessons/algorithms/ring_or_tree.py
    torchrun --nproc-per-node 4 lessons/algorithms/ring_or_tree.py
"""

# %%
import math

from collectives import Times, check, computed, run

from latencies import ASSUMPTIONS, ring_time, tree_time
from which_one_when import seconds

# %% [markdown]
# ## "Below 32 GPUs the traditional tree, above 512 the double binary tree"
#
# Such a rule chooses by the number of ranks alone. The traditional tree is the binomial one of
# [tree](../../notebooks/algorithms/tree.ipynb), up and down again, and the same lesson has the
# double tree. The step simulates both and the ring for 1 KiB, 64 KiB, 1 MiB and 64 MiB on 24, 128
# and 1024 ranks, with a latency of 10 µs and 10 GB/s. It divides the times of the traditional tree
# and of the ring by that of the double tree.

# %% [markdown]
# **Predict first.** Is there a size at which the double tree is faster than the traditional one on
# 24 ranks, and one at which the traditional one is faster on 1024?


# %%
@computed
def rule_of_thumb(rank, world_size, device):
    latency, bandwidth, found = 10e-6, 10e9, {}
    for n in (24, 128, 1024):
        for nbytes in (2**10, 2**16, 2**20, 2**26):
            tree, ring, double = (
                seconds(name, n, nbytes, latency, bandwidth)
                for name in ("binomial_tree", "ring", "double_tree")
            )
            found[n, nbytes] = round(tree / double, 2), round(ring / double, 2)

    short, long = slice(None, 2), slice(2, None)
    for n in (24, 128, 1024):
        trees = [found[size][0] for size in found if size[0] == n]
        check([max(trees[short]) < 1, min(trees[long]) > 1], [True, True], f"trees on {n} ranks")
    ring_is_faster = [size for size, (_, ring) in found.items() if ring < 1]
    check(ring_is_faster, [(24, 2**20), (24, 2**26), (128, 2**26)], "the ring is faster")
    ratios = {
        f"{what}, {n} ranks": [ratio[k] for (ranks, _), ratio in found.items() if ranks == n]
        for n in (24, 128, 1024)
        for k, what in enumerate(("tree", "ring"))
    }
    curves = {
        name: [(4**k, seconds(name, 24, 4**k, latency, bandwidth)) for k in range(4, 15)]
        for name in ("binomial_tree", "double_tree", "ring")
    }
    return ratios | {"on 24 ranks": Times(curves)}


# %%
if __name__ == "__main__":
    run(rule_of_thumb, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# There are both, so the rule is false at both ends. The double tree is 3.53 times as fast as the
# traditional one for 64 MiB on 24 ranks, and the ring is even faster, at 0.7 of the double tree's
# time. For 1 KiB on 1024 ranks the traditional tree takes 0.67 times as long as the double one,
# because it has fewer steps. With any of these numbers of ranks, the two trees cross between 64 KiB
# and 1 MiB, so it is the size that decides.
#
# "A ring for few ranks, a tree for many" is no better. Ring and double tree cross at a number of
# bytes, too, but this number grows with the ranks: on 128 ranks the ring is faster for 64 MiB, on
# 1024 it takes 1.72 times as long. The picture has the times of 24 ranks.
#
# </details>

# %% [markdown]
# ## "Up to 180 times faster"
#
# The second claim is a measurement. In 2019 NVIDIA found that double binary trees make an
# `all_reduce` up to 180 times faster than rings, on 24,576 GPUs ([its
# article](https://developer.nvidia.com/blog/massively-scale-deep-learning-training-nccl-2-4/)). It
# is copied as 24,756 GPUs, and as 180 ms for the ring and 1 ms for the tree.
#
# We have no such machine. Nor does NCCL take double trees "by default since 2.4", as one reads: it
# chooses by the size of the tensor, with a table of latencies in its source
# ([`tuning.cc`](https://github.com/NVIDIA/nccl/blob/v2.5.6-1/src/graph/tuning.cc)), for each of its
# three protocols, LL, LL128 and Simple. `latencies.py` beside this lesson has those of 2019 and
# 2020. What do they predict?
#
# Read such a table together with the comment above it, which says here: "Tree/Simple is the latency
# a 256kB chunk, which is ~ base lat + 256k/12GB/s (+ 256k/12GB/s for the network)". So 28 and 50 µs
# for a hop of the tree are mostly transfer, which an empty tensor does not need. `latencies.py`
# subtracts the transfer, and 6.2 and 6.3 µs are left.
#
# The step simulates an empty tensor on 4,096 nodes with 6 GPUs each, and divides the time of the
# ring by that of the tree.

# %% [markdown]
# **Predict first.** Is the measured 180 inside what the table predicts, below it, or above it? If
# all hops were alike, only their number would count: `2 * 24575` on the ring, and in the tree 5
# inside a node and 12 between the 4,096 nodes, up and down again, which are 34.


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
    check([ring < 0.180, tree < 0.001], [True, True], "less than 180 ms, and than 1 ms")
    slower_tree = {"ms, ring and tree": [1000 * ring, 1000 * tree], "for 180": 1000 * ring / 180}
    return ratios | slower_tree


# %%
if __name__ == "__main__":
    run(claim_of_180, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# It is below all of it: the table predicts 319 to 1523, and 1446 if every hop takes the same time.
#
# Why is the measured number lower? With LL of 2019 the ring takes 44.24 ms and the tree 0.1294 ms.
# If the tree took 0.2458 ms, the ratio would be 180, so about 0.1 ms more is enough. The table has
# one latency for every hop, but a real `all_reduce` also starts a program on each GPU, and its hops
# between nodes cross several switches and wait for the slowest node. Such a constant is lost in the
# long time of the ring, and doubles the short time of the tree.
#
# Most important for your cluster: all of this holds for an empty tensor. For a large one the
# bandwidth decides, as above.
#
# </details>

# %%
STEPS = [rule_of_thumb, claim_of_180]

# %% [markdown]
# ## Change and try
#
# 1. In `claim_of_180`, change `n, per_node = 24_576, 6` to `n, per_node = 24, 6`.
#    <details><summary>Answer</summary> You get `rank 0/4: got False, should be True [more than 180,
#    gloo]`. On 24 GPUs the tree is far from that: with every hop alike, it is 3 times as fast.
#    </details>

# %% [markdown]
# ## Read on
#
# An algorithm decides more than the time. Next lesson:
# [same_bits](../../notebooks/algorithms/same_bits.ipynb), on what it does to the result.
