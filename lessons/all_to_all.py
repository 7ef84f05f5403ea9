# %% [markdown]
"""
# all_to_all

Every rank gives n pieces, one for each rank, and ends up with n pieces, one from each rank.

A **rank** is one process of the job, and its number, from 0; the **world size**, n below, is how many there are. The **backend** is
the library that moves the bytes: gloo (CPU), NCCL (GPU) or MPI.

You will see the pieces as a list and as one tensor, pieces of unequal length, a matrix transposed while its rows lie on different
ranks, and tokens that travel to their experts and come back to their owners in the right order.

    python lessons/all_to_all.py
    torchrun --nproc-per-node 4 lessons/all_to_all.py

To run it, clone the repository and type `make tour`; or, where you already have torch, `pip install -e '.[notebooks]'`.
"""

# %%
from collectives import check
from collectives.lesson import run
import torch
import torch.distributed as dist

# %% [markdown]
# ## Worked numbers
#
# Four ranks. Rank r sends `[10 * r + k]` to rank k: the tens name the sender, the ones the receiver. Read the column "before" down
# and you have "after": what was row r is now column r.
#
# | rank | before | after |
# |---|---|---|
# | 0 | [[0], [1], [2], [3]] | [[0], [10], [20], [30]] |
# | 1 | [[10], [11], [12], [13]] | [[1], [11], [21], [31]] |
# | 2 | [[20], [21], [22], [23]] | [[2], [12], [22], [32]] |
# | 3 | [[30], [31], [32], [33]] | [[3], [13], [23], [33]] |

# %% [markdown]
# ## The code
#
# Two lists of n tensors, output first. Piece k of the input goes to rank k; piece r of the output comes from rank r. The input
# stays.


# %%
def all_to_all(rank, world_size, device):
    sent = [torch.tensor([10 * rank + k], device=device) for k in range(world_size)]
    received = [torch.full((1,), -1, device=device) for _ in range(world_size)]

    dist.all_to_all(received, sent)

    check(received, [torch.tensor([10 * r + rank]) for r in range(world_size)], "all_to_all")
    check(sent, [torch.tensor([10 * rank + k]) for k in range(world_size)], "all_to_all: its input")
    return {"before": sent, "after": received}


# %%
if __name__ == "__main__":
    run(all_to_all)

# %% [markdown]
# ### One tensor
#
# `all_to_all_single` cuts one tensor along its first dimension into n equal pieces. Here a piece is a row.


# %%
def rows_of_one_tensor(rank, world_size, device):
    sent = torch.tensor([[rank, k] for k in range(world_size)], device=device)  # a row: [from, to]
    received = torch.full_like(sent, -1)

    dist.all_to_all_single(received, sent)

    check(received, torch.tensor([[r, rank] for r in range(world_size)]), "all_to_all_single")
    check(sent, torch.tensor([[rank, k] for k in range(world_size)]), "all_to_all_single: its input")
    return {"sent": sent, "received": received}


# %% [markdown]
# **Predict first.** What does row 3 say on rank 1: `[1, 3]` or `[3, 1]`?

# %%
if __name__ == "__main__":
    run(rows_of_one_tensor)

# %% [markdown]
# **Why.** A row says [from, to]. The rows that have arrived on rank 1 all end in 1, and their position is the rank that sent them.

# %% [markdown]
# ### Unequal pieces
#
# Two lists of lengths say how the output and the input are cut, output first. What rank r sends to rank k must be as long as what
# rank k expects from rank r. Here rank r sends r + 1 numbers to each. (In the list form the pieces speak for themselves, but gloo
# refuses lists of unequal pieces.)


# %%
def unequal_splits(rank, world_size, device):
    send_counts = [rank + 1] * world_size
    receive_counts = [r + 1 for r in range(world_size)]
    sent = torch.tensor([10 * rank + k for k in range(world_size) for _ in range(rank + 1)], device=device)
    received = torch.full((sum(receive_counts),), -1, device=device)

    dist.all_to_all_single(received, sent, receive_counts, send_counts)

    check(received, torch.tensor([10 * r + rank for r in range(world_size) for _ in range(r + 1)]), "all_to_all_single, unequal")
    return {"sent": sent, "received": received}


# %% [markdown]
# **Predict first.** Rank 0 sends one number to each rank, rank 3 sends four to each: 4 numbers in all, and 16. How many does each
# of them receive?

# %%
if __name__ == "__main__":
    run(unequal_splits)

# %% [markdown]
# **Why.** Ten each, 1 + 2 + 3 + 4. What a rank receives depends on what the others send, not on what it sends itself; so with
# unequal pieces input and output differ in length, and each needs its own list of lengths.

# %% [markdown]
# ### A transpose
#
# A matrix of 2n rows and n columns; rank r holds rows 2r and 2r + 1. Of the transpose, which has n rows, it is to hold row r.
# Transpose what you have: row k of that is what rank k needs from you. Exchange, and read what arrived as one row.


# %%
def transpose(rank, world_size, device):
    columns = torch.arange(world_size, device=device)
    rows = torch.stack([10 * (2 * rank) + columns, 10 * (2 * rank + 1) + columns])  # entry (i, j) is 10 * i + j

    # subtle: `rows.T` alone only reads the same memory in another order; what is sent must lie in memory as it is to arrive.
    sent = rows.T.contiguous()
    received = torch.full_like(sent, -1)
    dist.all_to_all_single(received, sent)
    row = received.flatten()

    check(row, torch.tensor([10 * i + rank for i in range(2 * world_size)]), "transpose by all_to_all_single")
    return {"rows of the matrix": rows, "row of the transpose": row}


# %%
if __name__ == "__main__":
    run(transpose)

# %% [markdown]
# ### Tokens to experts, and back
#
# A mixture of experts with one expert on each rank. A router has chosen an expert for every token; nobody knows how many tokens
# will come from where: perhaps none. So the counts travel first, then the tokens, then the answers, along the same way back: the
# two lists of counts change places. Each expert here appends its number to a token, so that an answer tells what it was and who
# made it.


# %%
def router(tokens, experts):
    return tokens * (tokens + 1) // 2 % experts  # stands in for a network


def dispatch_and_return(rank, world_size, device):
    tokens = 10 * rank + torch.arange(rank + 3, device=device)  # 3 tokens on rank 0, 4 on rank 1, ...
    expert = router(tokens, world_size)

    order = expert.argsort(stable=True)  # tokens for the same expert side by side
    send_counts = expert.bincount(minlength=world_size)
    receive_counts = torch.full_like(send_counts, -1)
    dist.all_to_all_single(receive_counts, send_counts)
    # subtle: lengths are numbers of the host. On CUDA `tolist()` waits for the GPU: the one stop that unequal counts cost.
    sends, receives = send_counts.tolist(), receive_counts.tolist()

    arrived = tokens.new_full((sum(receives),), -1)
    dist.all_to_all_single(arrived, tokens[order], receives, sends)
    answers = 10 * arrived + rank  # the expert's work
    returned = torch.full_like(tokens, -1)
    dist.all_to_all_single(returned, answers, sends, receives)
    answered = torch.full_like(tokens, -1)
    answered[order] = returned  # undo the sorting: each answer stands where its token stood

    everyones = [10 * r + torch.arange(r + 3) for r in range(world_size)]
    mine = [own[router(own, world_size) == rank] for own in everyones]
    check(receives, [len(own) for own in mine], "all_to_all_single of the counts")
    check(arrived, torch.cat(mine), "all_to_all_single of the tokens")
    check(answered, 10 * everyones[rank] + router(everyones[rank], world_size), "dispatch and return")
    return {"tokens": tokens, "experts": expert, "at this expert": arrived, "answered": answered}


# %%
if __name__ == "__main__":
    run(dispatch_and_return)

# %%
STEPS = [all_to_all, rows_of_one_tensor, unequal_splits, transpose, dispatch_and_return]

# %% [markdown]
# ## The proof
#
# Every number names its sender and its receiver, so a piece that went astray, arrived in another's place or never left shows. The
# tokens are followed all the way: how many came, which, and that every answer stands where its token stood, made by the right
# expert.

# %% [markdown]
# ## The cost
#
# S is what one rank gives, its own n pieces. One of them stays at home, so each rank sends (n - 1) / n * S bytes, and receives as
# many. Unlike a ring of all_reduce, nobody passes anything on: n - 1 messages of S / n bytes each, and with many ranks these become
# small. Every pair of ranks talks, so the slowest link between any two sets the pace. With unequal pieces it is the rank with the
# most to send or receive. In memory: the output beside the input.
#
# Bus-bandwidth factor: `(n - 1) / n`. (Algorithm bandwidth is S / time; times this factor it can be compared with what the links
# can do.)

# %% [markdown]
# ## Pitfalls
#
# - `all_to_all` takes lists. Given tensors it raises a TypeError: use `all_to_all_single`.
# - The order of arguments is output first, with the lengths too: output lengths, then input lengths.
# - Lengths are lists of Python numbers; a tensor of counts is refused.
# - Nobody compares the counts of two ranks. On gloo, more than the receiver expects kills its process; less goes unnoticed, and the
#   gap keeps what was there before. So exchange the counts, as above, and do not guess them.
# - Input and output must not be the same tensor: gloo overwrites what it has not sent yet, and says nothing.
# - `all_to_all_single` wants contiguous tensors: a `.T` is refused.
# - A rank for which nobody has anything still has to call, with a tensor of length 0.

# %% [markdown]
# ## Where it is used
#
# Mixture of experts: tokens to experts and back, twice a layer. Sequence parallelism of the Ulysses kind: from "all heads of a part
# of the sequence" to "some heads of all of it". Distributed FFTs, as the transpose between two dimensions. Recommender models:
# embeddings looked up on the rank that holds the table, returned to the rank that asked.

# %% [markdown]
# ## Change and try
#
# Each of these is one change in one cell: make it, run that cell and the one after it, and undo it.
#
# 1. In `dispatch_and_return`, change `answered[order] = returned` to `answered = returned`. All answers are there, and all are
#    right. It says `[dispatch and return, int64[`: they came back sorted by expert, and stand beside the wrong tokens.
# 2. In `unequal_splits`, change `receive_counts, send_counts)` to `send_counts, receive_counts)`. Which lengths come first? Output
#    before input, as with the tensors. It says `Split sizes doesn't match total dim 0 size`, on every rank.
# 3. In `transpose`, change `rows.T.contiguous()` to `rows.T`. The transpose prints the same with and without. It says
#    `Tensors must be contiguous`.

# %% [markdown]
# ## Read on
#
# In PyTorch's documentation:
#
# - [`all_to_all`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_to_all)
# - [`all_to_all_single`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_to_all_single)
#
# Next lesson: [barrier](../notebooks/barrier.ipynb), which moves no data at all.
