# %% [markdown]
"""
# same_bits: is all_reduce deterministic? The order of a sum

A sum of floating-point numbers depends on the order of its terms. So an algorithm also decides
which bits come out.

You change from four ranks to eight, keep the seed and the batches, and the loss differs in the
seventh digit. Is that a bug? In this lesson you see ranks that add the same numbers and get
different sums, and why every rank still gets the same bits from one `all_reduce`. Afterwards you
can also say how far such a sum is off.

    python lessons/algorithms/same_bits.py
    torchrun --nproc-per-node 4 lessons/algorithms/same_bits.py
"""

# %%
from collectives import StepLog, check, computed, run
from collectives.algorithms import calls
from collectives.algorithms.links import GroupLinks
import torch
import torch.distributed as dist

# %% [markdown]
# ## The idea
#
# After each addition, the sum is rounded to the nearest number of its dtype. In float32, 16777216 +
# 1 is 16777216, because from 2 to the 24 on only even numbers are left. But 1 + 1 + 1 is 3, and
# 16777216 + 3 is 16777220. So the result depends on which numbers are added first.

# %% [markdown]
# ## The code
#
# ### Every rank in its own order
#
# Rank 0 holds 16777216, and every other rank holds 1. All ranks gather all numbers, and each adds
# them up twice. In one sum it begins with its own number, as a ring would do if the ranks did not
# share their sums. In the other sum every rank begins with the number of rank 0.

# %% [markdown]
# **Predict first.** Rank 0 begins with 16777216 and adds 1 three times. Rank 1 adds the three ones
# first, and then 16777216. By how much do their sums differ? Write the number down.


# %%
def same_bits(rank, world_size, device):
    own = torch.full((1,), 2.0**24 if rank == 0 else 1.0, device=device)
    all_numbers = [torch.empty_like(own) for _ in range(world_size)]
    dist.all_gather(all_numbers, own)

    from_me, in_order = own.clone(), all_numbers[0].clone()
    steps = StepLog([from_me.long()])
    for k in range(1, world_size):
        from_me += all_numbers[(rank + k) % world_size]
        in_order += all_numbers[k]
        steps.add([from_me.long()])

    sums = [None] * world_size
    dist.all_gather_object(sums, (from_me.item(), in_order.item()))
    differ, equal = (len(set(one)) for one in zip(*sums, strict=True))
    check(equal, 1, "different sums in rank order")
    check(differ > 1, world_size > 2, "more than one sum in the ranks' own orders")
    return {"from me on": int(from_me), "in rank order": int(in_order), "steps": steps}


# %%
if __name__ == "__main__":
    run(same_bits, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# By 16777220 - 16777216 = 4. The exact sum is odd, so no rank has it. If each rank trained with its
# own sum, the copies of the model would drift apart. If all ranks add in one order, they have the
# same bits, though not the exact sum either. In the picture nothing is sent, and a step is one
# addition. Red edges are around sums that no exact addition gives.
#
# </details>

# %% [markdown]
# ### Five algorithms
#
# Which order does an `all_reduce` have? On a ring each piece is summed up once and then copied, and
# in a tree so is the whole tensor, so the ranks cannot differ. In recursive doubling every rank
# adds for itself. There the bits are the same only because both ranks of a pair add the same two
# numbers, and `a + b` is `b + a`. The step sums random numbers with each algorithm, twice, over
# messages of gloo.

# %% [markdown]
# **Predict first.** How many different results do the five algorithms have on four ranks? Write the
# number down.


# %%
def five_algorithms(rank, world_size, device):
    names = ("ring", "recursive_doubling", "halving_doubling", "binomial_tree", "double_tree")
    links, found = GroupLinks(dist.new_group(backend="gloo")), {}
    for name in names:
        for _ in range(2):
            x = torch.randn(1000, generator=torch.Generator().manual_seed(rank))
            calls.all_reduce(links, x, dist.ReduceOp.SUM, name)
            found.setdefault(name, []).append(x.tolist())

    ranks = [None] * world_size
    dist.all_gather_object(ranks, found)
    check(all(other == found for other in ranks), True, "the same bits on all ranks")
    check(all(first == again for first, again in found.values()), True, "and in both runs")
    same = [name for name in names if found[name] == found["recursive_doubling"]]
    results = len({str(one) for one in found.values()})
    if world_size == 4:
        check([results, same], [len(names) - 1, ["recursive_doubling", "binomial_tree"]], "orders")
    return {"results": results, "equal": same}


# %%
if __name__ == "__main__":
    run(five_algorithms, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Four, because recursive doubling and the binomial tree both add ranks 0 and 1, ranks 2 and 3, and
# then the two sums. Each of the other three has an order of its own. But each algorithm gives the
# same bits on all ranks, and in every run.
#
# </details>

# %% [markdown]
# ### How far a sum is off
#
# Equal bits can still be far from the exact sum, and how far depends on the order, too. Let u be
# the largest relative error of one rounding: 2 to the -8 for bfloat16, 2 to the -11 for float16.
# Each addition may be off by the factor `1 + u`. Along a chain a number passes through up to n - 1
# additions, in a tree through `log2(n)`. So the error of a sum of positive numbers is at most
# `(1 + u)**depth - 1` of the sum. The step adds 1,024 numbers between 0 and 1 in both ways, and
# checks this bound.


# %%
@computed
def chain_and_tree(rank, world_size, device):
    found = {}
    for dtype in (torch.bfloat16, torch.float16):
        random = torch.Generator().manual_seed(0)
        terms = torch.rand(1024, dtype=torch.float64, generator=random).to(dtype)
        chain, tree = terms[0], terms
        for term in terms[1:]:
            chain = chain + term
        while len(tree) > 1:
            tree = tree[0::2] + tree[1::2]
        check([chain.dtype, tree.dtype], [dtype, dtype], "each sum is rounded to its type")
        exact, u = terms.double().sum().item(), torch.finfo(dtype).eps / 2
        for name, total, depth in (("chain", chain, 1023), ("tree", tree[0], 10)):
            error = abs(total.item() - exact) / exact
            check(error <= (1 + u) ** depth - 1, True, f"the bound of a {name} in {dtype}")
            found[f"{name}, {dtype}".replace("torch.", "")] = error
    check(found["chain, bfloat16"] > 1000 * found["tree, bfloat16"], True, "chain and tree")
    return found


# %%
if __name__ == "__main__":
    run(chain_and_tree)

# %% [markdown]
# In bfloat16 the chain loses half of the sum, because from 256 on the next number is 258, so adding
# less than 1 changes nothing. The tree loses little, because it adds numbers of about the same
# size.
#
# On a ring of n ranks each sum is a chain of n numbers. This is one reason why gradients are often
# reduced in float32, even if the model computes in bfloat16.

# %%
STEPS = [same_bits, five_algorithms, chain_and_tree]

# %% [markdown]
# ## The count
#
# | algorithm | additions on the longest way | who adds a number |
# |---|---|---|
# | ring | `n - 1` | each piece: one rank in each step |
# | recursive doubling | `log2(n)` | every rank for itself |
# | halving and doubling | `log2(n)` | each piece: one rank of each pair |
# | trees | `log2(n)` | a rank for its subtree |
#
# So the bits depend on the algorithm, on the number of ranks, and on how the tensor is cut. They do
# not depend on which rank is faster, because the schedule fixes who adds what to what.

# %% [markdown]
# ## What libraries do
#
# - With NCCL all ranks always get the same bits ([say its
#   maintainers](https://github.com/NVIDIA/nccl/issues/855)). Two runs can differ if NVLS adds in
#   the switch ([nccl#1497](https://github.com/NVIDIA/nccl/issues/1497)).
# - With [`all_reduce`](../../notebooks/all_reduce.ipynb) on gloo, all ranks get the same bits, too,
#   because it is a ring.

# %% [markdown]
# ## Change and try
#
# 1. In `same_bits`, change `own.clone(), all_numbers[0].clone()` to `own.clone(), own.clone()` and
#    `in_order += all_numbers[k]` to `in_order += all_numbers[(rank + k) % world_size]`.
#    <details><summary>Answer</summary> You get `rank 0/4: got 2, should be 1 [different sums in
#    rank order, gloo]`. Now this sum, too, is each rank's own. </details>

# %% [markdown]
# ## Read on
#
# - N. Higham, [*The accuracy of floating point summation*](https://doi.org/10.1137/0914050) (1993):
#   the bounds.
#
# So the same ranks get the same bits again. The same request to a server may not. Next lesson:
# [every_size](../../notebooks/algorithms/every_size.ipynb), on a row in tensors of different sizes.
