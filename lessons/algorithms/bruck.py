# %% [markdown]
"""
# bruck: all_gather and all_to_all for any number of ranks

An `all_gather`, an `all_to_all` and a barrier in which the distance doubles, for any number of
ranks.

Five ranks do not form pairs, and some calls have no root, so neither doubling nor a tree fits them.
In this lesson you still need only `log2(n)` messages: for an `all_gather`, for a barrier, and for
an `all_to_all`, where you pay for it with bytes. At its end you can say when that is worth it.

    python lessons/algorithms/bruck.py
    torchrun --nproc-per-node 4 lessons/algorithms/bruck.py
"""

# %%
from collectives import StepLog, check, counting, run
from ring import exchange
import torch
import torch.distributed as dist

# %% [markdown]
# ## The idea
#
# In [doubling](../../notebooks/algorithms/doubling.ipynb) the ranks form pairs, which needs a power
# of two. Bruck's algorithm needs none, because a rank does not send to the rank from which it
# receives: in a step with distance d, it sends to the rank d places before it, and receives from
# the rank d places after it. With the distances 1, 2, 4, ..., what a rank has doubles in each step,
# for any number of ranks. `exchange` is that of the ring, and sends and receives at the same time.


# %%
def distances(n):
    return [1 << k for k in range((n - 1).bit_length())]


# %% [markdown]
# ## all_gather
#
# Rank r begins with piece r, and always has a row of pieces from r on, where piece 0 follows the
# last one. In the last step it may need fewer pieces than it has already.

# %% [markdown]
# **Predict first.** How many messages does each of four ranks send? And with `-n 5`, how many would
# each of five ranks send? Write both numbers down.


# %%
def bruck_all_gather(own, rank, n):
    pieces = [own if number == rank else None for number in range(n)]
    with StepLog(pieces) as steps:
        for distance in distances(n):
            count = min(distance, n - distance)
            sent = [(rank + i) % n for i in range(count)]
            arriving = own.new_empty(count)
            leaving = torch.cat([pieces[number] for number in sent])
            exchange(leaving, (rank - distance) % n, arriving, (rank + distance) % n)
            for i, piece in enumerate(arriving.split(1)):
                pieces[(rank + distance + i) % n] = piece
            steps.add(pieces, sent, to=(rank - distance) % n)
    return torch.cat(pieces), steps


def bruck(rank, world_size, device):
    own = torch.tensor([10**rank], device=device)
    gathered, steps = bruck_all_gather(own, rank, world_size)

    check(gathered, torch.tensor([10**number for number in range(world_size)]), "all_gather")
    check(steps.messages, len(distances(world_size)), "messages sent")
    check(steps.bytes, (world_size - 1) * own.nbytes, "bytes sent")
    return {"after": gathered, "sent": steps}


# %%
if __name__ == "__main__":
    run(bruck, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 2 of four, and three of five, which is one fewer each time than on a ring. Nobody sends more bytes
# than on a ring, because every piece that arrives is new. The second message has two pieces.
#
# </details>

# %% [markdown]
# ## A barrier
#
# What if there is nothing to gather? Then only the news remains that a rank has come, and the same
# messages make a barrier, the dissemination barrier. For the proof, each message carries a 1 for
# each rank whose news has reached the sender. A real barrier sends empty ones, because it is enough
# that a message arrives.


# %%
def dissemination(rank, world_size, device):
    come = torch.zeros(world_size, dtype=torch.int64, device=device)
    come[rank] = 1
    heard = [1]
    with counting() as counts:
        for distance in distances(world_size):
            arriving = torch.empty_like(come)
            exchange(come, (rank + distance) % world_size, arriving, (rank - distance) % world_size)
            come = torch.maximum(come, arriving)
            heard.append(int(come.sum()))

    check(counts["c10d.send"].calls, len(distances(world_size)), "messages sent")
    check(come, torch.ones_like(come), "barrier")
    check(heard, [1] + [min(2 * one, world_size) for one in distances(world_size)], "heard of")
    return {"ranks heard of": heard}


# %%
if __name__ == "__main__":
    run(dissemination)

# %% [markdown]
# ## all_to_all, pairwise
#
# In an `all_to_all`, rank r has another piece for each rank, so nothing can be passed on to all.
# The pieces here have two digits, from whom and to whom, both counted from 1: 23 goes from rank 1
# to rank 2. Every rank sends to every other rank, and to a new one in each step. If all ranks sent
# to rank 0 first, and then to rank 1, they would queue up.


# %%
def given(rank, n, device):
    return [torch.tensor([10 * (rank + 1) + to + 1], device=device) for to in range(n)]


def expected(rank, n):
    return torch.tensor([10 * (source + 1) + rank + 1 for source in range(n)])


def pairwise(rank, world_size, device):
    n, give = world_size, given(rank, world_size, device)
    got = [give[rank] if source == rank else None for source in range(n)]
    with StepLog([*give, *got]) as steps:
        for shift in range(1, n):
            to, source = (rank + shift) % n, (rank - shift) % n
            got[source] = torch.empty_like(give[to])
            exchange(give[to], to, got[source], source)
            steps.add([*give, *got], sent=to, to=to, at=n + rank)

    check(torch.cat(got), expected(rank, n), "all_to_all")
    check([steps.messages, steps.bytes], [n - 1, (n - 1) * give[0].nbytes], "messages, bytes")
    everyone = [None] * n
    dist.all_gather_object(everyone, [to for to, _, _ in steps.sent])
    receivers = [len(set(step)) for step in zip(*everyone, strict=True)]
    check(receivers, [n] * (n - 1), "receivers in each step")
    return {"got": torch.cat(got), "sent": steps}


# %%
if __name__ == "__main__":
    run(pairwise)

# %% [markdown]
# The left half of a panel is what the ranks give, the right half what they have got. Each piece
# travels once, and a rank sends `n - 1` messages.
#
# ## all_to_all, Bruck
#
# With a thousand ranks and short pieces, `n - 1` messages take long, and Bruck's `all_to_all` needs
# only `log2(n)`. Place j of a rank holds a piece that must travel j ranks to the right. Write j in
# binary: 3 is 2 + 1, so the piece travels one rank in the step with distance 1, and two ranks in
# the step with distance 2. All pieces that travel in a step share one message.

# %% [markdown]
# **Predict first.** With pairwise exchange, each of four ranks sends 3 messages of one piece, 24
# bytes in all. Does it send fewer messages here, and does it send fewer bytes?


# %%
def bruck_all_to_all(rank, world_size, device):
    n, give = world_size, given(rank, world_size, device)
    places = [give[(rank + j) % n] for j in range(n)]
    with StepLog(places) as steps:
        for distance in distances(n):
            travelling = [j for j in range(n) if j & distance]
            leaving = torch.cat([places[j] for j in travelling])
            arriving = torch.empty_like(leaving)
            exchange(leaving, (rank + distance) % n, arriving, (rank - distance) % n)
            for j, piece in zip(travelling, arriving.split(1), strict=True):
                places[j] = piece
            steps.add(places, travelling, to=(rank + distance) % n)
    got = torch.cat([places[(rank - source) % n] for source in range(n)])

    check(got, expected(rank, n), "all_to_all")
    hops = sum(j.bit_count() for j in range(n))  # each piece travels once for each 1 in its place
    check([steps.messages, steps.bytes], [len(distances(n)), hops * give[0].nbytes], "sent")
    return {"got": got, "sent": steps}


# %%
if __name__ == "__main__":
    run(bruck_all_to_all, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Fewer messages, 2 with two pieces each, but more bytes, 32, because the piece at place 3 travels
# twice. With n ranks each step moves about half of the pieces, so a rank sends about `log2(n) / 2`
# times what it has. That is worth it as long as a message costs more than its bytes.
#
# </details>

# %%
STEPS = [bruck, dissemination, pairwise, bruck_all_to_all]

# %% [markdown]
# ## The count
#
# For n ranks with S bytes each, which for an `all_gather` is what a rank has after it:
#
# | algorithm | messages of a rank | bytes that it sends |
# |---|---|---|
# | `all_gather` on a ring | `n - 1` | `(n - 1) / n * S` |
# | `all_gather`, Bruck | `log2(n)`, rounded up | `(n - 1) / n * S` |
# | `all_to_all`, pairwise | `n - 1` | `(n - 1) / n * S` |
# | `all_to_all`, Bruck | `log2(n)`, rounded up | about `log2(n) / 2 * S` |
# | barrier, dissemination | `log2(n)`, rounded up | nothing to speak of |

# %% [markdown]
# ## What libraries do
#
# - MPICH uses Bruck's `all_to_all` for short pieces, and pairwise exchange for long ones ([its
#   source](https://github.com/pmodels/mpich/tree/main/src/mpi/coll/alltoall)).
# - NCCL's `all_gather` is a ring. Since 2.23 it also has PAT, which is a variation of Bruck's
#   algorithm ([its paper](https://arxiv.org/abs/2506.20252)).

# %% [markdown]
# ## Change and try
#
# 1. In `bruck_all_to_all`, change `places[(rank - source) % n]` to `places[(source - rank) % n]`.
#    What is at place j in the end? <details><summary>Answer</summary> You get `rank 0/4: got [11,
#    41, 31, 21], should be [11, 21, 31, 41] [all_to_all, int64[4], gloo]`. The piece at place j has
#    travelled j ranks to the right, so it came from rank r - j. </details>

# %% [markdown]
# ## Write it yourself
#
# In your folder of [exercises](../../README.md#exercises):
#
# ```sh
# collectives practice barrier_by_dissemination
# collectives practice all_to_all_pairwise
# ```

# %% [markdown]
# ## Read on
#
# - J. Bruck and others, [*Efficient algorithms for all-to-all communications in multiport
#   message-passing systems*](https://doi.org/10.1109/71.642949) (1997).
#
# In all these algorithms every other rank is equally far away. In a cluster it is not. Next lesson:
# [hierarchical](../../notebooks/algorithms/hierarchical.ipynb).
