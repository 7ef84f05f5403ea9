# %% [markdown]
"""
# all_to_all

In a mixture of experts each rank holds one expert, and has tokens for all of them. In `all_to_all`
every rank has n pieces, one for each rank, and ends up with n pieces, one from each rank.

You will see the pieces as a list and as one tensor; pieces of unequal length; a matrix transposed
while its rows lie on different ranks; and tokens that travel to their experts and come back to
their owners, in the right order.

    python lessons/all_to_all.py
    torchrun --nproc-per-node 4 lessons/all_to_all.py
"""

# %%
from collectives import check
from collectives.lesson import run
import torch
import torch.distributed as dist

# %% [markdown]
# ## The call
#
# It takes two lists of n tensors, the output first. Piece k of the input goes to rank k. Piece r of
# the output comes from rank r. The input stays as it is. gloo has this form since torch 2.12; on an
# older torch, go on to the second step, which [works there, too](../notebooks/hearsay.ipynb).


# %%
def all_to_all(rank, world_size, device):
    sent = [torch.tensor([10 * rank + k], device=device) for k in range(world_size)]
    received = [torch.full((1,), -1, device=device) for _ in range(world_size)]
    dist.all_to_all(received, sent)
    # proof
    check(received, [torch.tensor([10 * r + rank]) for r in range(world_size)], "all_to_all")
    check(sent, [torch.tensor([10 * rank + k]) for k in range(world_size)], "all_to_all: its input")
    return {"before": sent, "after": received}


# %%
if __name__ == "__main__":
    run(all_to_all)

# %% [markdown]
# Four ranks print this:
#
# | rank | before | after |
# |---|---|---|
# | 0 | [[0], [1], [2], [3]] | [[0], [10], [20], [30]] |
# | 1 | [[10], [11], [12], [13]] | [[1], [11], [21], [31]] |
# | 2 | [[20], [21], [22], [23]] | [[2], [12], [22], [32]] |
# | 3 | [[30], [31], [32], [33]] | [[3], [13], [23], [33]] |
#
# The tens name the sender, and the ones the receiver: 31 goes from rank 3 to rank 1. In the
# picture, each row has one colour before, and each column has one colour after. Rows have become
# columns.

# %% [markdown]
# ### One tensor in place of a list
#
# `all_to_all_single` cuts one tensor along its first dimension into n equal pieces. Here each piece
# has two elements, and the hundreds name the sender: rank 0 has 100, 101, ..., rank 1 has 200, 201,
# ...


# %%
def two_elements_for_each(rank, world_size, device):
    sent = 100 * (rank + 1) + torch.arange(2 * world_size, device=device)
    received = torch.full_like(sent, -1)
    dist.all_to_all_single(received, sent)
    # proof
    own = 2 * rank + torch.arange(2)  # where the pieces for this rank begin and end, on each rank
    expected = torch.cat([100 * (r + 1) + own for r in range(world_size)])
    check(received, expected, "all_to_all_single")
    return {"sent": sent, "received": received}


# %% [markdown]
# **Predict first.** Which are the first two numbers that rank 1 receives, and which are the last
# two? Write down all four.

# %%
if __name__ == "__main__":
    run(two_elements_for_each)

# %% [markdown]
# <details><summary>Answer</summary>
#
# They are 102 and 103, and 402 and 403. Rank 1 gets elements 2 and 3 of every rank, in rank order.
#
# </details>

# %% [markdown]
# ### Unequal pieces
#
# Two lists of lengths say how the output and the input are cut, again the output first. What rank r
# sends to rank k must be as long as what rank k expects from rank r. Here rank r sends r + 1
# numbers to each rank. As in the first step, the tens name the sender, and the ones the receiver.


# %%
def unequal_pieces(rank, world_size, device):
    send_counts = [rank + 1] * world_size
    receive_counts = [r + 1 for r in range(world_size)]
    sent = (10 * rank + torch.arange(world_size, device=device)).repeat_interleave(rank + 1)
    received = sent.new_full((sum(receive_counts),), -1)
    dist.all_to_all_single(received, sent, receive_counts, send_counts)
    # proof
    expected = torch.tensor([10 * r + rank for r in range(world_size) for _ in range(r + 1)])
    check(received, expected, "all_to_all_single, unequal")
    return {"sent": sent, "received": received}


# %% [markdown]
# **Predict first.** Rank 0 sends 4 numbers in all, one to each rank. Rank 3 sends 16. How many does
# each of these two receive? Write both numbers down.

# %%
if __name__ == "__main__":
    run(unequal_pieces)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Both receive 10, from 1 + 2 + 3 + 4. What a rank receives depends on what the others send, and not
# on what it sends itself. So the input and the output differ in length, and each has its own list
# of lengths.
#
# </details>

# %% [markdown]
# ### A transpose
#
# A matrix has 2 n rows and n columns, and each rank holds two of the rows. Rank r should end up
# with row r of the transpose, which is column r of the matrix. So each rank cuts its two rows into
# columns, and sends column k to rank k. The number in row i and column j is 10 i + j, counted from
# 1: rank 0 holds 11, 12, 13, 14 and 21, 22, 23, 24.


# %%
def transpose(rank, world_size, device):
    i = torch.tensor([[2 * rank + 1], [2 * rank + 2]], device=device)
    j = torch.arange(1, world_size + 1, device=device)
    rows = 10 * i + j

    # subtle: `rows.T` only reads the same memory in another order, and the call sends memory
    sent = rows.T.contiguous()
    received = torch.full_like(sent, -1)
    dist.all_to_all_single(received, sent)
    # proof
    column = 10 * torch.arange(1, 2 * world_size + 1) + rank + 1
    check(received.flatten(), column, "transpose by all_to_all_single")
    return {"rows of the matrix": rows, "row of the transpose": received.flatten()}


# %%
if __name__ == "__main__":
    run(transpose)

# %% [markdown]
# ### Tokens to experts, and back
#
# This is one layer of a mixture of experts, with expert r on rank r. A router chooses the expert of
# each token. Ours is a formula, and this is what it does with four experts:
#
# | rank | tokens | experts |
# |---|---|---|
# | 0 | 1, 2, 3 | 0, 1, 1 |
# | 1 | 11, 12, 13, 14 | 1, 2, 2, 3 |
# | 2 | 21, 22, 23, 24, 25 | 2, 3, 3, 0, 0 |
# | 3 | 31, 32, 33, 34, 35, 36 | 3, 0, 0, 1, 1, 2 |
#
# A rank cannot know how many tokens each other rank will send it; there may be none. So the counts
# travel first, and then the tokens. The answers take the same way back: the two lists of counts
# change places. Each expert appends its own number to the token, so 252 is the answer of expert 2
# to token 25.


# %%
def router(tokens, experts):
    return tokens // 2 % experts  # stands in for a network


def dispatch_and_return(rank, world_size, device):
    tokens = 10 * rank + torch.arange(1, rank + 4, device=device)  # 3 on rank 0, 4 on rank 1, ...
    experts = router(tokens, world_size)
    order = experts.argsort(stable=True)  # tokens for the same expert side by side

    send_counts = experts.bincount(minlength=world_size)
    receive_counts = torch.full_like(send_counts, -1)
    dist.all_to_all_single(receive_counts, send_counts)
    # subtle: lengths are numbers of Python. On CUDA `tolist` waits for the GPU (documented).
    sends, receives = send_counts.tolist(), receive_counts.tolist()

    arrived = tokens.new_full((sum(receives),), -1)
    dist.all_to_all_single(arrived, tokens[order], receives, sends)
    answers = 10 * arrived + rank  # the work of the expert
    returned = torch.full_like(tokens, -1)
    dist.all_to_all_single(returned, answers, sends, receives)
    answered = torch.full_like(tokens, -1)
    answered[order] = returned  # undo the sorting: each answer stands where its token stood
    # proof: of the counts, of the tokens at this expert, and of the answers
    everyones = [10 * r + torch.arange(1, r + 4) for r in range(world_size)]
    here = [own[router(own, world_size) == rank] for own in everyones]
    check(receives, [len(own) for own in here], "all_to_all_single of the counts")
    check(arrived, torch.cat(here), "all_to_all_single of the tokens")
    own = everyones[rank]
    check(answered, 10 * own + router(own, world_size), "dispatch and return")
    return {"tokens": tokens, "at this expert": arrived, "answered": answered}


# %% [markdown]
# **Predict first.** How many tokens arrive at expert 0, and how many of them come from rank 1?
# Write both numbers down.

# %%
if __name__ == "__main__":
    run(dispatch_and_return)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Five tokens arrive: 1, 24, 25, 32 and 33. None of them comes from rank 1.
#
# In the picture, call 2 takes the tokens to their experts: on the left each row has the colour of
# its owner, on the right it is mixed. Call 3 takes the answers back, and now each colour is an
# expert. On the right, the answers of rank 2 stand as 240, 250, 212, 223, 233, sorted by expert.
# The last line of code before the proof puts them back into the order of the tokens.
#
# </details>

# %%
STEPS = [all_to_all, two_elements_for_each, unequal_pieces, transpose, dispatch_and_return]

# %% [markdown]
# ## The cost
#
# S is the size in bytes of what one rank gives, its own n pieces. One piece stays at home, so each
# rank sends (n - 1) / n * S bytes, and receives as many. Nobody passes anything on. There are n - 1
# messages of S / n bytes each, and with many ranks these become small.
#
# Every pair of ranks talks, so the slowest link between any two sets the pace. With unequal pieces
# it is the rank that has the most to send or to receive: one popular expert makes all ranks wait.
# In memory, there is the output beside the input.
#
# Bus-bandwidth factor: `(n - 1) / n`. The algorithm bandwidth is S / time.

# %% [markdown]
# ## Pitfalls
#
# - `all_to_all` takes lists. With tensors it raises a TypeError: use
#   [`all_to_all_single`](../notebooks/hearsay.ipynb).
# - The output comes first, among the tensors and among the lengths.
# - Nobody compares the counts of two ranks. On gloo, more than the receiver expects [kills its
#   process](../notebooks/mistakes/arguments.ipynb). Less goes unnoticed, and the gap keeps what was
#   there before. So exchange the counts, as above.
# - The lengths are lists of Python numbers: a tensor of counts is refused.
# - gloo refuses lists with pieces of unequal length. Use one tensor and two lists of lengths.
# - The input and the output must not be the same tensor. gloo overwrites what it has not sent yet,
#   and raises no error.
# - A rank for which nobody has anything still has to call, with an output of length 0.

# %% [markdown]
# ## Where it is used
#
# Mixture of experts: tokens to experts and back, in every such layer. Sequence parallelism in the
# style of Ulysses: from all heads of a part of the sequence to some heads of all of it. Distributed
# FFTs: the transpose between two dimensions. Recommender models: embeddings go from the rank that
# holds the table to the rank that asked.

# %% [markdown]
# ## Change and try
#
# Each of these is one change in one cell. Make it, run that cell and the one after it, and undo it.
#
# 1. In `dispatch_and_return`, change `answered[order] = returned` to `answered = returned`. All
#    answers are there, and all are right. What is wrong?
#
#    <details><summary>Answer</summary>
#
#    You get `[dispatch and return, int64[`, in a proof that fails. The answers come back sorted by
#    expert, and stand beside the wrong tokens.
#
#    </details>
#
# 2. In `unequal_pieces`, change `receive_counts, send_counts)` to `send_counts, receive_counts)`.
#    Which lengths come first?
#
#    <details><summary>Answer</summary>
#
#    You get `Split sizes doesn't match total dim 0 size`. Those of the output come first.
#
#    </details>
#
# 3. In `transpose`, change `rows.T.contiguous()` to `rows.T`. Both print the same matrix. Can both
#    be sent?
#
#    <details><summary>Answer</summary>
#
#    You get `Tensors must be contiguous`. [Not every call is so
#    careful](../notebooks/mistakes/buffers.ipynb).
#
#    </details>

# %% [markdown]
# ## Write it yourself
#
# Write `my_all_to_all(received, sent)` with `scatter`, for two lists of tensors. Each rank is the
# root once.
#
# <details><summary>One way to write it</summary>
#
# ```python
# def my_all_to_all(received, sent):
#     for root in range(dist.get_world_size()):
#         pieces = sent if dist.get_rank() == root else None
#         dist.scatter(received[root], pieces, src=root)
#
#
# def try_my_all_to_all(rank, world_size, device):
#     sent = [torch.tensor([10 * rank + k]) for k in range(world_size)]
#     received = [torch.tensor([-1]) for _ in range(world_size)]
#     my_all_to_all(received, sent)
#     check(received, [torch.tensor([10 * r + rank]) for r in range(world_size)], "my_all_to_all")
#     return {"sent": sent, "received": received}
# ```
#
# </details>

# %% [markdown]
# ## Read on
#
# - N. Shazeer and others, [*Outrageously Large Neural Networks*](https://arxiv.org/abs/1701.06538)
#   (2017): the mixture of experts, and why a router needs a push towards balance.
# - D. Lepikhin and others, [*GShard*](https://arxiv.org/abs/2006.16668) (2020): experts on 2048
#   devices, by all_to_all.
# - S. A. Jacobs and others, [*DeepSpeed Ulysses*](https://arxiv.org/abs/2309.14509) (2023):
#   attention over long sequences, by all_to_all.
# - J. Bruck and others, *Efficient Algorithms for All-to-All Communications in Multiport
#   Message-Passing Systems* (1997): fewer and larger messages, for small pieces.
#
# In PyTorch's documentation:
#
# - [`all_to_all`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_to_all)
# - [`all_to_all_single`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_to_all_single)
# - [`scatter`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.scatter)
# - [`get_rank`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.get_rank)
# - [`get_world_size`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.get_world_size)
#
# Next lesson: [send_recv](../notebooks/send_recv.ipynb), a message from one rank to one other.
