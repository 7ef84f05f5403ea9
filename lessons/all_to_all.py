# %% [markdown]
"""
# all_to_all: each rank sends a piece to each rank

In `all_to_all` every rank has n pieces, one for each rank, and receives n pieces, one from each
rank.

In a [mixture of experts](../docs/glossary.md#moe) each rank has one expert and tokens for all of
them, so every rank must send something else to every rank, and nobody knows beforehand how much. At
the end of this lesson you can send tokens to their experts and bring the answers back in the right
order.

    python lessons/all_to_all.py
    torchrun --nproc-per-node 4 lessons/all_to_all.py
"""

# %%
from collectives import check, run
import torch
import torch.distributed as dist

# %% [markdown]
# ## The call
#
# ```python
# dist.all_to_all(output_tensor_list, input_tensor_list, group=None, async_op=False)
# ```
#
# | argument | meaning |
# |---|---|
# | `output_tensor_list` | one tensor from each rank, to be filled |
# | `input_tensor_list` | one tensor for each rank; they stay as they are |
# | `group` | the ranks that take part; None is all of them |
# | `async_op` | True: return a [`Work`](../docs/glossary.md#work) at once |
#
# `all_to_all` takes two lists of n tensors, the output first. Piece k of the input is for rank k,
# and piece r of the output is from rank r.


# %%
def all_to_all(rank, world_size, device):
    sent = [torch.tensor([10 * rank + k + 1], device=device) for k in range(world_size)]
    received = [torch.full((1,), -1, device=device) for _ in range(world_size)]
    dist.all_to_all(received, sent)
    # proof
    check(received, [torch.tensor([10 * r + rank + 1]) for r in range(world_size)], "all_to_all")
    check(sent, [torch.tensor([10 * rank + k + 1]) for k in range(world_size)], "the input")
    return {"sent": sent, "received": received}


# %%
if __name__ == "__main__":
    run(all_to_all)

# %% [markdown]
# Four ranks print this:
#
# | rank | sent | received |
# |---|---|---|
# | 0 | [[1], [2], [3], [4]] | [[1], [11], [21], [31]] |
# | 1 | [[11], [12], [13], [14]] | [[2], [12], [22], [32]] |
# | 2 | [[21], [22], [23], [24]] | [[3], [13], [23], [33]] |
# | 3 | [[31], [32], [33], [34]] | [[4], [14], [24], [34]] |
#
# Follow one number: rank 3 sends 32, its second piece, to rank 1, where it is the last. In the
# picture, rows of one colour become columns.

# %% [markdown]
# ### One tensor in place of a list
#
# Rows become columns: that is how a matrix is transposed, and a matrix is one tensor.
# `all_to_all_single` cuts it along its first dimension into n equal pieces. Here each rank has two
# columns of a matrix with n rows, but needs one whole row: rank r needs row r of every rank. A
# piece is a row of two numbers.

# %% [markdown]
# **Predict first.** Rank 0 has the rows [1, 2], [3, 4], [5, 6] and [7, 8], and each next rank has
# 10 more in every place. Which numbers are first and last in the row of rank 1?


# %%
def columns_to_rows(rank, world_size, device):
    columns = (10 * rank + 1 + torch.arange(2 * world_size, device=device)).view(world_size, 2)
    received = torch.full_like(columns, -1)
    dist.all_to_all_single(received, columns)
    row = received.flatten()
    # proof
    own = torch.tensor([2 * rank + 1, 2 * rank + 2])  # the positions of this row, on each rank
    expected = torch.cat([10 * r + own for r in range(world_size)])
    check(row, expected, "all_to_all_single")
    return {"two columns": columns, "one row": row}


# %%
if __name__ == "__main__":
    run(columns_to_rows, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 3 and 34: it begins with row [3, 4] of rank 0, and ends with row [33, 34] of rank 3.
#
# </details>

# %% [markdown]
# ### Unequal pieces
#
# So far all pieces were equally long, and you may read that they always are: "all_to_all moves
# equal amounts". But experts are not equally popular. For unequal pieces, two lists of lengths say
# how the output and the input are cut, again the output first. Here rank r has r + 1 numbers, one
# for each rank up to itself.

# %% [markdown]
# **Predict first.** Rank 0 sends one number, and rank 3 sends four. How many does each of these two
# receive?


# %%
def unequal_pieces(rank, world_size, device):
    send_counts = [1 if k <= rank else 0 for k in range(world_size)]
    receive_counts = [1 if rank <= r else 0 for r in range(world_size)]
    sent = 10 * rank + torch.arange(1, rank + 2, device=device)
    received = sent.new_full((sum(receive_counts),), -1)
    dist.all_to_all_single(received, sent, receive_counts, send_counts)
    # proof
    expected = torch.tensor([10 * r + rank + 1 for r in range(rank, world_size)])
    check(received, expected, "all_to_all_single, unequal")
    return {"sent": sent, "received": received}


# %%
if __name__ == "__main__":
    run(unequal_pieces, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Rank 0 receives four, 1, 11, 21 and 31, and rank 3 receives one, 34.
#
# </details>

# %% [markdown]
# ### Tokens to experts, and back
#
# Now everything comes together in one layer of a mixture of experts, where rank r has expert r. A
# router chooses the expert of each token; ours is a formula.
#
# | rank | tokens | experts |
# |---|---|---|
# | 0 | 1, 2, 3 | 0, 1, 1 |
# | 1 | 11, 12, 13, 14 | 1, 2, 2, 3 |
# | 2 | 21, 22, 23, 24, 25 | 2, 3, 3, 0, 0 |
# | 3 | 31, 32, 33, 34, 35, 36 | 3, 0, 0, 1, 1, 2 |
#
# A rank does not know how many tokens the other ranks have for it, so the ranks send the counts
# first, and then the tokens. For the way back, swap the two lists of counts. An answer is the token
# with the number of the expert behind it: expert 2 answers 252 to token 25.

# %% [markdown]
# **Predict first.** How many tokens does expert 0 receive, and how many of them are from rank 1?


# %%
def router(tokens, experts):
    return tokens // 2 % experts


def dispatch_and_return(rank, world_size, device):
    tokens = 10 * rank + torch.arange(1, rank + 4, device=device)  # 3 on rank 0, 4 on rank 1, ...
    experts = router(tokens, world_size)
    order = experts.argsort(stable=True)  # tokens for the same expert side by side

    send_counts = experts.bincount(minlength=world_size)
    receive_counts = torch.full_like(send_counts, -1)
    dist.all_to_all_single(receive_counts, send_counts)
    sends, receives = send_counts.tolist(), receive_counts.tolist()  # the call needs Python numbers

    arrived = tokens.new_full((sum(receives),), -1)
    dist.all_to_all_single(arrived, tokens[order], receives, sends)
    answers = 10 * arrived + rank  # the work of the expert
    returned = torch.full_like(tokens, -1)
    dist.all_to_all_single(returned, answers, sends, receives)
    answered = torch.full_like(tokens, -1)
    answered[order] = returned  # undo the sorting
    # proof: of the counts, of the tokens at this expert, and of the answers
    everyones = [10 * r + torch.arange(1, r + 4) for r in range(world_size)]
    here = [own[router(own, world_size) == rank] for own in everyones]
    check(receives, [len(own) for own in here], "all_to_all_single of the counts")
    check(arrived, torch.cat(here), "all_to_all_single of the tokens")
    own = everyones[rank]
    check(answered, 10 * own + router(own, world_size), "dispatch and return")
    return {"tokens": tokens, "at this expert": arrived, "answered": answered}


# %%
if __name__ == "__main__":
    run(dispatch_and_return, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Five: 1, 24, 25, 32 and 33. None is from rank 1, but rank 1 takes part in the call all the same.
#
# </details>

# %%
STEPS = [all_to_all, columns_to_rows, unequal_pieces, dispatch_and_return]

# %% [markdown]
# ## The cost
#
# S is the size in bytes of the input of one rank. The rank keeps one of its n pieces, so it sends
# (n - 1) / n * S bytes, and receives as many, in n - 1 messages. With many ranks these are small,
# and [bruck](../notebooks/algorithms/bruck.ipynb) shows how to send fewer. With unequal pieces, the
# rank that sends or receives most limits the speed, so one popular expert makes all ranks wait.
#
# Measured on gloo, four ranks on two cores (`collectives bench bus all_to_all -n 4 -b 4KiB -e 16MiB
# -f 4096`): 16 MiB on each rank take 18 ms, 4.2 times as long as one `scatter`.

# %% [markdown]
# ## Pitfalls
#
# - `all_to_all` takes lists. With tensors it raises a TypeError, so use `all_to_all_single`.
# - What rank r sends to rank k must be as long as what rank k expects from it, but nobody compares
#   the two. On gloo, a longer piece [kills the receiver's
#   process](../notebooks/mistakes/arguments.ipynb), and nobody notices a shorter one. So exchange
#   the counts, as above.
# - gloo refuses a tensor that is not [contiguous](../docs/glossary.md#contiguous), and a list with
#   pieces of unequal length.
# - If the input is also the output, gloo overwrites what it has not sent yet, without an error.
# - A rank that receives nothing must also make the call, with an output of length 0.

# %% [markdown]
# ## On GPUs
#
# - `tolist` copies the counts to the CPU, which waits for the GPU, as for `item` ([PyTorch
#   forum](https://discuss.pytorch.org/t/how-to-know-if-an-operation-is-blocking-synchronizing-or-not/182685)).

# %% [markdown]
# ## Where it is used
#
# A mixture of experts calls it twice in each layer, there and back.
# [Ulysses](../docs/glossary.md#ulysses) and distributed Fourier transforms use it to cut a tensor
# along another dimension, and recommender models to fetch embeddings from the rank that has them.

# %% [markdown]
# ## Change and try
#
# Make one change, run its cell and the next one, and undo it.
#
# 1. In `dispatch_and_return`, change `answered[order] = returned` to `answered = returned`. Which
#    ranks have the answers in the wrong order?
#
#    <details><summary>Answer</summary>
#
#    You get `rank 2/4: got [240, 250, 212, 223, 233], should be [212, 223, 233, 240, 250] [dispatch
#    and return, int64[5], gloo]`, and rank 3 fails, too. Ranks 0 and 1 pass, because their tokens
#    were sorted by expert already.
#
#    </details>
#
# 2. In `unequal_pieces`, change `1 if rank <= r else 0 for r in range(world_size)` to `1 for r in
#    range(world_size)`. Now every rank expects a number also from those ranks that send it none.
#    What does rank 1 get?
#
#    <details><summary>Answer</summary>
#
#    You get `rank 1/4: got [-1, 12, 22, 32], should be [12, 22, 32] [all_to_all_single, unequal,
#    int64[4], gloo]`. On gloo, an element that nobody sends keeps its old value.
#
#    </details>
#

# %% [markdown]
# ## Write it yourself
#
# In your folder of [exercises](../README.md#exercises):
#
# ```sh
# collectives practice all_to_all_from_scatter
# collectives practice all_to_all_pairwise
# collectives practice which_calls
# ```

# %% [markdown]
# ## Read on
#
# - N. Shazeer and others, [*Outrageously Large Neural Networks*](https://arxiv.org/abs/1701.06538)
#   (2017): the mixture of experts, and why a router must be balanced.
#
# In PyTorch's documentation:
#
# - [`all_to_all`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_to_all)
# - [`all_to_all_single`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_to_all_single)
# - [`scatter`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.scatter)
#
# In all these calls a rank stands still until its data is there. Next lesson:
# [isend_irecv](../notebooks/isend_irecv.ipynb), messages during which a rank can compute.
