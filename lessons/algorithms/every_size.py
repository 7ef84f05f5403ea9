# %% [markdown]
"""
# every_size: batch-invariant results in inference

A model that serves requests gives another answer when more requests share its batch. The weights
are the same and so is your request, so what has changed? Part of it is the `all_reduce` between the
ranks: it adds the numbers of your row in an order that depends on how large the tensor is.

In this lesson you see these bits change when another row joins yours, find the two reasons, and
learn two ways to equal bits at every size, with the messages and bytes that they cost.

    python lessons/algorithms/every_size.py
    torchrun --nproc-per-node 4 lessons/algorithms/every_size.py
"""

# %%
import os

import collectives.backends.register  # noqa: F401  (torch.distributed now knows by_hand)
from collectives import check, counting, needs, run
from collectives.algorithms import calls
from collectives.algorithms.links import GroupLinks
import torch
import torch.distributed as dist

# %% [markdown]
# ## The idea
#
# The lesson [same_bits](../../notebooks/algorithms/same_bits.ipynb) compared ranks and runs. Here
# we compare *sizes*. A batch is a tensor with one row for each request. If the bits of a row are
# equal, whatever other rows there are, the computation is *batch invariant*. You need this for
# tests, for caches, and in reinforcement learning, where a trainer must compute the same numbers
# that an engine has computed in another batch.
#
# Two things can break it inside a collective: either the algorithm cuts the tensor into pieces and
# adds each piece in another order, or the library uses another algorithm for small tensors than for
# large ones.

# %% [markdown]
# ## The code
#
# ### One more row
#
# Every rank has 128 rows of 4,096 random numbers, with its rank as the seed, so that the proof can
# compute all of them. The ranks reduce the first row alone, and then together with other rows.
# `chains` lists all sums that a ring can make, which begins at one of the ranks and goes round in
# one of two directions.

# %% [markdown]
# **Predict first.** The first row is the same in all five batches. In how many of its 4,096 sums
# does it differ from the row that was reduced alone: in none, in a few, or in about a third?

# %%
SIZES = (1, 8, 16, 128)


def rows_of(rank, rows, device):
    generator = torch.Generator().manual_seed(rank)
    # subtle: torch.randn has other last bits on another processor, a product has not
    left, right = torch.rand(2, 128, 4096, generator=generator) - 0.5
    return (left * right)[:rows].to(device)


def first_rows(n, device):
    return [rows_of(rank, 1, device)[0] for rank in range(n)]


def chains(terms):
    n = len(terms)
    for direction in (1, -1):
        for first in range(n):
            yield sum(terms[(first + direction * k) % n] for k in range(n))


@needs(ranks=3, backend="gloo")
def one_more_row(rank, world_size, device):
    first = {}
    for rows in (1, 2, *SIZES[1:]):
        x = rows_of(rank, rows, device)
        dist.all_reduce(x)
        first[rows] = x[0]
    differ = {rows: int((row != first[1]).sum()) for rows, row in first.items()}
    # proof
    by_chain = list(chains(first_rows(world_size, device)))
    for rows, row in first.items():
        is_chain = torch.stack([row == total for total in by_chain]).any(dim=0)
        check(int(is_chain.sum()), 4096, f"numbers that are a chain, {rows} rows")
    check(min(differ[rows] for rows in differ if rows > 1) > 0, True, "other bits in another batch")
    return {f"rows: {rows}": count for rows, count in differ.items()}


# %%
if __name__ == "__main__":
    run(one_more_row, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# In about a third: 1287 as soon as a second row joins it. Each sum is one of the chains around the
# ring, so none of them is wrong. But which chain it is depends on the piece in which the number
# lies, and a larger tensor has larger pieces.
#
# </details>

# %% [markdown]
# ### Another algorithm for another size
#
# gloo always runs a ring. Our backend `by_hand` does what most libraries do, and chooses by size.
# Over sockets it uses recursive doubling up to 128 KiB, halving and doubling up to 1 MiB, and a
# ring for more. A row has 16 KiB. On one machine it would use shared memory, so the step sets
# `COLLECTIVES_ALGORITHM=sockets`.


# %%
def by_hand_over_sockets():
    before = os.environ.get("COLLECTIVES_ALGORITHM")
    os.environ["COLLECTIVES_ALGORITHM"] = "sockets"
    try:
        return dist.new_group(backend="by_hand")
    finally:
        os.environ.pop("COLLECTIVES_ALGORITHM")
        if before is not None:
            os.environ["COLLECTIVES_ALGORITHM"] = before


def neighbours_first(terms):
    """(a + b) + (c + d): recursive doubling, where n is a power of two."""
    while len(terms) > 1:
        terms = [a + b for a, b in zip(terms[0::2], terms[1::2], strict=True)]
    return terms[0]


def far_ranks_first(terms):
    """(a + c) + (b + d): halving and doubling."""
    while len(terms) > 1:
        half = len(terms) // 2
        terms = [a + b for a, b in zip(terms[:half], terms[half:], strict=True)]
    return terms[0]


@needs(ranks=3)
def switch_by_size(rank, world_size, device):
    group = by_hand_over_sockets()
    first = {}
    for rows in SIZES:
        x = rows_of(rank, rows, "cpu")
        dist.all_reduce(x, group=group)
        first[rows] = x[0]
    # proof
    terms = first_rows(world_size, "cpu")
    check(torch.equal(first[8], first[1]), True, "up to 128 KiB the bits are equal")
    check(torch.equal(first[128], first[1]), False, "from there on too")
    if world_size in (4, 8):
        right = [neighbours_first(terms), neighbours_first(terms), far_ranks_first(terms)]
        got = [first[rows] for rows in SIZES[:3]]
        check(got, right, "up to 128 KiB neighbours first, then far ranks first")
    by_chain = torch.stack([first[128] == total for total in chains(terms)]).any(dim=0)
    check(int(by_chain.sum()), 4096, "numbers that are a chain")
    return {f"rows: {rows}": int((row != first[1]).sum()) for rows, row in first.items()}


# %%
if __name__ == "__main__":
    run(switch_by_size)

# %% [markdown]
# With 1 and 8 rows, four ranks add (0 + 1) + (2 + 3) for every number. With 16 rows they add (0 +
# 2) + (1 + 3), and with 128 rows each quarter of the tensor is a chain that begins at another rank.
# So a busy server, which has larger batches, gives other answers than an idle one.

# %% [markdown]
# ### One algorithm for all sizes
#
# The obvious cure is to pin the algorithm, so that it is the same one for every size. Is that
# enough? `calls.all_reduce` executes the one that you name, over messages of gloo, and `counting`
# counts these messages.

# %% [markdown]
# **Predict first.** The ring, recursive doubling, and halving and doubling are pinned, one after
# the other. Which of them still has other bits at another size? And which of the others sends fewer
# bytes?

# %%
NAMES = ("ring", "recursive_doubling", "halving_doubling")


@needs(ranks=3)
def pinned(rank, world_size, device):
    links = GroupLinks(dist.new_group(backend="gloo"))
    found, equal, nbytes = {}, {}, {}
    for name in NAMES:
        first = []
        for rows in SIZES:
            x = rows_of(rank, rows, "cpu")
            with counting() as counts:
                calls.all_reduce(links, x, dist.ReduceOp.SUM, name)
            first.append(x[0])
        differ = max(int((row != first[0]).sum()) for row in first)
        sent = counts["c10d.send"]  # of the last call, with all rows
        found[name] = f"{differ} differ, {sent.calls} messages, {sent.bytes:,} bytes"
        equal[name], nbytes[name] = differ == 0, sent.bytes
    # proof
    if world_size == 4:
        share = 2 * (world_size - 1) / world_size
        tensors = {"ring": share, "recursive_doubling": 2.0, "halving_doubling": share}
        check({name: nbytes[name] / x.nbytes for name in NAMES}, tensors, "tensors sent")
    check(equal, {name: name != "ring" for name in NAMES}, "equal bits")
    return found


# %%
if __name__ == "__main__":
    run(pinned, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# For the ring it is not: 1323 sums differ although it is always a ring, because it cuts the tensor
# into n pieces, and the place of a number decides where its chain begins. Recursive doubling, and
# halving and doubling, add the same ranks to each other for every number, wherever it lies. Of
# these two, halving and doubling sends fewer bytes: 3,145,728, as many as the ring, and it sends
# them in 4 messages where the ring needs 6. So on four ranks equal bits at every size cost nothing
# but the choice of the algorithm. With many ranks they may cost time, because the messages of
# halving and doubling go far and share cables
# ([doubling](../../notebooks/algorithms/doubling.ipynb)).
#
# </details>

# %% [markdown]
# ### Without a choice of the algorithm
#
# gloo has no setting for another algorithm than its ring. What can you do there? Moving numbers
# rounds nothing, so gather the tensors of all ranks, and add them yourself, in rank order.

# %% [markdown]
# **Predict first.** How many bytes does each rank hold after the gathering, compared with those
# that an all_reduce works on?


# %%
def sum_in_rank_order(x):
    pieces = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(pieces, x)
    total = pieces[0]
    for piece in pieces[1:]:
        total += piece
    return total


@needs(ranks=3)
def gathered_first(rank, world_size, device):
    first = []
    for rows in SIZES:
        x = rows_of(rank, rows, device)
        with counting() as counts:
            total = sum_in_rank_order(x)
        first.append(total[0])
    with counting() as of_all_reduce:
        dist.all_reduce(x)
    # proof
    right = sum(first_rows(world_size, device))
    check(first, [right] * len(SIZES), "the sum in rank order, at every size")
    gathered, reduced = counts["c10d.all_gather"].bytes, of_all_reduce["c10d.all_reduce"].bytes
    check(gathered, world_size * reduced, "bytes gathered")
    check([*counts], ["c10d.all_gather"], "the only call: nothing else travels")
    return {"bytes gathered": gathered, "bytes of an all_reduce": reduced}


# %%
if __name__ == "__main__":
    run(gathered_first, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# n times as many: 8,388,608 and 2,097,152. So this is for small tensors, such as those of a server
# that makes one token at a time. For large ones, reduce pieces of one fixed size, such as a row,
# each in a call of its own. Then only the number of calls depends on the batch.
#
# </details>

# %%
STEPS = [one_more_row, switch_by_size, pinned, gathered_first]

# %% [markdown]
# ## The count
#
# Bytes that a rank sends, of S bytes in the tensor, where n is a power of two:
#
# | way | bytes | messages | equal bits at every size |
# |---|---|---|---|
# | ring | `2 (n - 1) / n * S` | `2 (n - 1)` | no |
# | recursive doubling | `log2(n) * S` | `log2(n)` | yes |
# | halving and doubling | `2 (n - 1) / n * S` | `2 log2(n)` | yes |
# | all_gather on a ring, and a sum in rank order | `(n - 1) * S` | `n - 1` | yes |
#
# All this is for a fixed number of ranks. With another number, each way gives other bits.

# %% [markdown]
# ## On GPUs
#
# - NCCL chooses the number of its channels by the size, and each channel has a tree of another
#   shape. SGLang pinned the tree, and still had other bits until it pinned the channels, too
#   ([sglang#34159](https://github.com/sgl-project/sglang/pull/34159)).

# %% [markdown]
# ## Change and try
#
# 1. In `pinned`, change `calls.all_reduce(links, x, dist.ReduceOp.SUM, name)` to
#    `[calls.all_reduce(links, row, dist.ReduceOp.SUM, name) for row in x]`. Each row is reduced by
#    a call of its own. <details><summary>Answer</summary> You get `rank 0/4: got {'ring': True,
#    'recursive_doubling': True, 'halving_doubling': True}, should be {'ring': False,
#    'recursive_doubling': True, 'halving_doubling': True} [equal bits, gloo]`. The ring has equal
#    bits, too: a row is always cut in the same places. </details>

# %% [markdown]
# ## Read on
#
# - H. He, [*Defeating nondeterminism in LLM
#   inference*](https://thinkingmachines.ai/blog/defeating-nondeterminism-in-llm-inference/) (2025):
#   the other half of batch invariance, which is the kernels of one GPU.
#
# Up to here the algorithms have added rows of numbers. Next lesson:
# [backend_in_python](../../notebooks/algorithms/backend_in_python.ipynb), where DDP and FSDP2 train
# with them.
