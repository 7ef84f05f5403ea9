# %% [markdown]
"""
# ring_or_tree

Two well-known sentences on rings and trees, tried with the simulation of which_one_when.

You will see where "below 32 GPUs the traditional tree, above 512 the double binary tree" is false,
and what NCCL's own table says of "up to 180 times faster".

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
# Such rules name a number of ranks. The traditional tree is the binomial one of
# [tree](../../notebooks/algorithms/tree.ipynb), up and down again, and the double tree is there,
# too. Here they and the ring take 1 KiB, 64 KiB, 1 MiB and 64 MiB on 24, 128 and 1024 ranks, with a
# latency of 10 µs and 10 GB/s. The step divides the times of the other two by that of the double
# tree.

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
    run(rule_of_thumb)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Both, so the rule is false at both ends. The double tree is 3.53 times as fast as the traditional
# one for 64 MiB on 24 ranks, and the ring is faster than both: 0.7 is less than 1. On 1024 ranks,
# for 1 KiB, the traditional tree takes 0.67 times as long as the double one, because it has fewer
# steps. The trees cross between 64 KiB and 1 MiB with any of these numbers of ranks.
#
# "A ring for few ranks, a tree for many" is no better. Ring and double tree cross at a number of
# bytes, too, and this number grows with the ranks: on 128 the ring is faster for 64 MiB, on 1024 it
# takes 1.72 times as long. The picture has the times of 24 ranks.
#
# </details>

# %% [markdown]
# ## "Up to 180 times faster"
#
# In 2019 NVIDIA measured that double binary trees make an `all_reduce` up to 180 times faster than
# rings, on 24,576 GPUs ([its
# article](https://developer.nvidia.com/blog/massively-scale-deep-learning-training-nccl-2-4/)).
# Copies of it say 24,756, and turn the factor into times: 180 ms for the ring, 1 ms for the tree.
# We have no such machine. But NCCL chooses by a table of latencies in its source
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
    slower_tree = {"ms, ring and tree": [1000 * ring, 1000 * tree], "for 180": 1000 * ring / 180}
    return ratios | slower_tree


# %%
if __name__ == "__main__":
    run(claim_of_180)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Below all of it: the table predicts 319 to 1523. If every hop takes the same time, the ratio is
# 1446.
#
# Why is the measured number lower? The tree is so fast that little is enough: with LL of 2019 the
# ring takes 44.24 ms and the tree 0.1294 ms, and if it took 0.2458 ms, the ratio would be 180. A
# table has one latency for every hop. A real `all_reduce` also starts a program on each GPU, and
# its hops between nodes cross several switches and wait for the slowest node. The long time of the
# ring hardly notices this, and the short time of the tree doubles.
#
# And all of this holds for an empty tensor. For a large one the bandwidth decides, as above.
#
# </details>

# %%
STEPS = [rule_of_thumb, claim_of_180]

# %% [markdown]
# ## Change and try
#
# 1. In `claim_of_180`, change `n, per_node = 24_576, 6` to `n, per_node = 24, 6`.
#    <details><summary>Answer</summary> You get `rank 0/4: got False, should be True [more than 180,
#    gloo]`. On 24 GPUs the tree is nowhere that much faster: with every hop alike, it is 3 times.
#    </details>

# %% [markdown]
# ## Read on
#
# - S. Jeaugey, [*Massively Scale Your Deep Learning Training with NCCL
#   2.4*](https://developer.nvidia.com/blog/massively-scale-deep-learning-training-nccl-2-4/), 2019.
# - The page [Algorithms](../../docs/algorithms.md): what each algorithm sends, how long it takes.
#
# Next lesson: [same_bits](../../notebooks/algorithms/same_bits.ipynb).
