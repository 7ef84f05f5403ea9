# %% [markdown]
"""
# arguments: mismatched shapes, dtypes, roots and reductions

All ranks make the same call at the same time, but with different arguments: a length, a dtype, a
root, a reduction, sizes.

You would expect an error, but comparing the arguments would cost time at every call, so hardly any
of them is checked. Only one of these seven programs raises an error that says what is wrong: the
other six end in wrong numbers, wait, or die without a traceback. At the end of this lesson you know
what the ranks must agree on, and how they can.

Find each mistake yourself first: read "You see" and the program, and say which line is wrong. Then
open the output, the answer, and the cure below it.

    python lessons/mistakes/arguments.py
    torchrun --nproc-per-node 4 lessons/mistakes/arguments.py
"""

# %%
from collectives import check, cure, mistake, run
import torch
import torch.distributed as dist

# %% [markdown]
# ## Program 1: losses are added
#
# **You see.** Rank 1, whose last batch is short, continues with wrong sums. Rank 0 still waits for
# a number, and loses its connection:
#
# ```text
# RuntimeError: [.../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:21659. This is typically caused by a
# remote worker crashing. Check the logs of the remote worker before reporting an error.
# ```


# %%
@mistake("wrong numbers", ranks=2)
def add_losses(rank, world_size, device):
    losses = torch.ones(4 if rank == 0 else 3, device=device)
    dist.all_reduce(losses)
    check(losses, torch.full((len(losses),), 2.0), "all_reduce(SUM)")


# %%
if __name__ == "__main__":
    run(add_losses, folded=True)

# %% [markdown]
# <details><summary>What is wrong?</summary>
#
# **Cause: another length.** The tensor's length does not travel with it. Each rank cuts its own
# tensor into pieces and expects pieces of the same size from the other rank. Here this gives wrong
# numbers, but with other lengths the same mistake kills a process.
#
# **Cure.** Reduce something that has the same shape on every rank: a sum and a count.
#
# **Early.** `drop_last=True` avoids short batches. While you search,
# `TORCH_DISTRIBUTED_DEBUG=DETAIL` compares shapes and dtypes:
#
# ```text
# RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective:
# CollectiveFingerPrint(SequenceNumber=0, OpType=ALLREDUCE, TensorShape=[4], ... but Rank 1 is running collective:
# CollectiveFingerPrint(SequenceNumber=0, OpType=ALLREDUCE, TensorShape=[3], ...
# ```
#
# </details>


# %%
@cure(ranks=2)
def a_sum_and_a_count(rank, world_size, device):
    losses = torch.ones(4 if rank == 0 else 3, device=device)
    both = torch.tensor([losses.sum(), len(losses)], device=device)
    dist.all_reduce(both)
    check(both, torch.tensor([7.0, 7.0]), "all_reduce(SUM)")
    return {"sum": both[0], "count": both[1]}


# %%
if __name__ == "__main__":
    run(a_sum_and_a_count, folded=True)

# %% [markdown]
# ## Program 2: samples are counted
#
# **You see.** Rank 0 has the absurd number 1084227584. The numbers of ranks 1 and 2 are wrong, too,
# but plausible.


# %%
@mistake("wrong numbers", ranks=3)
def count_samples(rank, world_size, device):
    count = torch.tensor(
        [rank + 1], dtype=torch.int32 if rank == 0 else torch.float32, device=device
    )
    dist.all_reduce(count)
    check(count.to(torch.float32), torch.tensor([6.0]), "all_reduce(SUM)")


# %%
if __name__ == "__main__":
    run(count_samples, folded=True)

# %% [markdown]
# <details><summary>What is wrong?</summary>
#
# **Cause: another dtype.** gloo sends bytes, and each rank reads them in its own dtype. Ranks 1 and
# 2 get 5.0 from 2.0 + 3.0. But rank 0 reads the four bytes of 5.0 as an integer, which is
# 1084227584, and adds its own 1. (The check shows it as a float32, which is too coarse to show the
# 1.) When ranks 1 and 2 read the bytes of this integer as a float32 again, they get
# 5.000000476837158, the next number after 5.0.
#
# **Cure.** Name the dtype where the tensor is made, the same one on all ranks.
#
# **Early.** If a count is about a billion, suspect a float32 that is read as an integer. Check
# every tensor that is made from Python numbers, because `torch.tensor([0])` and
# `torch.tensor([0.0])` differ in dtype.
#
# </details>


# %%
@cure(ranks=3)
def one_dtype(rank, world_size, device):
    count = torch.tensor([rank + 1], dtype=torch.float32, device=device)
    dist.all_reduce(count)
    check(count, torch.tensor([6.0]), "all_reduce(SUM)")
    return {"count": count}


# %%
if __name__ == "__main__":
    run(one_dtype, folded=True)

# %% [markdown]
# ## Program 3: the best model for all
#
# **You see.** The rank with the best model should send it to all ranks, but all ranks wait. After
# 30 minutes:
#
# ```text
# RuntimeError: [.../gloo/transport/tcp/unbound_buffer.cc:129] Timed out waiting 1800000ms for send operation to complete
# ```


# %%
@mistake("hangs", ranks=2)
def share_the_best_model(rank, world_size, device):
    model = torch.tensor([rank], device=device)
    dist.broadcast(model, src=rank)  # "mine is the best": each has looked at its own score only
    check(model, torch.tensor([1]), "broadcast")


# %%
if __name__ == "__main__":
    run(share_the_best_model, folded=True)

# %% [markdown]
# <details><summary>What is wrong?</summary>
#
# **Cause: every rank names itself as the root.** Each rank has looked at its own score only, and
# takes itself for the best. So both ranks send, and none receives.
#
# **Cure.** Let the ranks agree first: gather the scores, and take the same best one on every rank.
#
# **Early.** `src` and `dst` should be constants, or the result of a collective. Not even DETAIL
# compares them.
#
# </details>


# %%
@cure(ranks=2)
def agree_on_the_root(rank, world_size, device):
    model, score = torch.tensor([rank], device=device), torch.tensor(10.0 + rank, device=device)
    scores = [torch.zeros_like(score) for _ in range(world_size)]
    dist.all_gather(scores, score)
    best = torch.stack(scores).argmax().item()
    dist.broadcast(model, src=best)
    check(model, torch.tensor([1]), "broadcast")
    return {"best": best, "model": model}


# %%
if __name__ == "__main__":
    run(agree_on_the_root, folded=True)

# %% [markdown]
# ## Program 4: a sum over three ranks
#
# **You see.** Every rank has the same number, and it is plausible, but wrong. Nothing in torch
# notices.


# %%
@mistake("wrong numbers", ranks=3)
def sum_over_three_ranks(rank, world_size, device):
    x = torch.tensor([10**rank], device=device)
    dist.all_reduce(x, op=dist.ReduceOp.MAX if rank == 0 else dist.ReduceOp.SUM)
    check(x, torch.tensor([111]), "all_reduce(SUM)")


# %%
if __name__ == "__main__":
    run(sum_over_three_ranks, folded=True)

# %% [markdown]
# <details><summary>What is wrong?</summary>
#
# **Cause: another reduction.** The reduction does not travel with the numbers: each rank applies
# its own to what it receives. Ranks 1 and 2 add, 10 + 100 = 110. Rank 0 takes the maximum of its
# own 1 and this 110, which is 110. Every rank receives this result, so you do not find the mistake
# by comparing ranks.
#
# **Cure.** Use the same reduction on every rank.
#
# **Early.** Try the call once with numbers whose answer you can work out in your head, as these
# lessons do.
#
# </details>


# %%
@cure(ranks=3)
def one_reduction(rank, world_size, device):
    x = torch.tensor([10**rank], device=device)
    dist.all_reduce(x, op=dist.ReduceOp.SUM)
    check(x, torch.tensor([111]), "all_reduce(SUM)")
    return {"x": x}


# %%
if __name__ == "__main__":
    run(one_reduction, folded=True)

# %% [markdown]
# ## Program 5: tokens for two experts
#
# **You see.** A process dies by SIGABRT (exit status -6). There is no Python traceback, only this
# on its stderr:
#
# ```text
# terminate called after throwing an instance of 'gloo::EnforceNotMet'
#   what():  [enforce fail at .../gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 24 vs 16. Received data size
#   doesn't match expected size. Is there a distributed collective mismatch in your code?
# ```


# %%
@mistake("dies", ranks=2)
def tokens_for_two_experts(rank, world_size, device):
    splits = [1, 3] if rank == 0 else [2, 2]
    tokens = torch.arange(4, device=device) + 10 * rank
    received = torch.full((4,), -1, device=device)
    dist.all_to_all_single(received, tokens, output_split_sizes=splits, input_split_sizes=splits)
    check(received, torch.tensor([[0, 10, 11], [1, 2, 3, 12, 13]][rank]), "all_to_all_single")


# %%
if __name__ == "__main__":
    run(tokens_for_two_experts, folded=True)

# %% [markdown]
# <details><summary>What is wrong?</summary>
#
# **Cause: a rank uses its own sizes both ways.** If you send me three tokens, I must expect three
# from you, so my output sizes are a column in the table of all ranks' input sizes, and not my own
# row. Rank 1 made room for two tokens (16 bytes), but got three (24 bytes).
#
# **Cure.** Exchange the sizes first, with the same call and one number for each rank.
#
# **Early.** Allocate the output from the sizes that you received. Then it cannot be too short.
#
# </details>


# %%
@cure(ranks=2)
def exchange_the_splits(rank, world_size, device):
    splits = [1, 3] if rank == 0 else [2, 2]
    tokens = torch.arange(4, device=device) + 10 * rank
    sizes = torch.full((world_size,), -1, device=device)
    dist.all_to_all_single(sizes, torch.tensor(splits, device=device))
    received = torch.full((sizes.sum().item(),), -1, device=device)
    dist.all_to_all_single(
        received, tokens, output_split_sizes=sizes.tolist(), input_split_sizes=splits
    )
    check(received, torch.tensor([[0, 10, 11], [1, 2, 3, 12, 13]][rank]), "all_to_all_single")
    return {"sends": splits, "expects": sizes, "received": received}


# %%
if __name__ == "__main__":
    run(exchange_the_splits, folded=True)

# %% [markdown]
# ## Program 6: pieces are gathered
#
# **You see.** There is an error on every rank, and for once it says what is wrong:
#
# ```text
# RuntimeError: ProcessGroupGloo::allgather: invalid tensor size at index 1 (expected (1), got (2))
# ```


# %%
@mistake("raises an error", ranks=3)
def gather_pieces(rank, world_size, device):
    mine = torch.full((rank + 1,), rank, device=device)
    pieces = [torch.full((number + 1,), -1, device=device) for number in range(world_size)]
    dist.all_gather(pieces, mine)
    check(torch.cat(pieces), torch.tensor([0, 1, 1, 2, 2, 2]), "all_gather")


# %%
if __name__ == "__main__":
    run(gather_pieces, folded=True)

# %% [markdown]
# <details><summary>What is wrong?</summary>
#
# **Cause: pieces of several lengths.** The docstring promises more, but gloo gathers only pieces of
# one shape. (If all pieces in a rank's list are as long as its own piece, this check passes, and a
# process dies instead.)
#
# **Cure.** Pad every piece to the longest, gather, and cut. For small data, use
# `all_gather_object`.
#
# **Early.** The samples of a validation set seldom divide evenly among the ranks, so test with one
# sample more than divides.
#
# </details>


# %%
@cure(ranks=3)
def pad_and_cut(rank, world_size, device):
    mine = torch.full((rank + 1,), rank, device=device)
    lengths = [torch.zeros((), dtype=torch.int64, device=device) for _ in range(world_size)]
    dist.all_gather(lengths, torch.tensor(len(mine), device=device))
    padded = torch.nn.functional.pad(mine, (0, max(lengths) - len(mine)))
    pieces = [torch.full_like(padded, -1) for _ in range(world_size)]
    dist.all_gather(pieces, padded)
    pieces = [piece[:length] for piece, length in zip(pieces, lengths, strict=True)]
    check(torch.cat(pieces), torch.tensor([0, 1, 1, 2, 2, 2]), "all_gather")
    return {"mine": mine, "pieces": pieces}


# %%
if __name__ == "__main__":
    run(pad_and_cut, folded=True)

# %% [markdown]
# ## Program 7: a rank without tokens
#
# **You see.** No token goes to rank 1, and rank 1 has none to send. But ranks 0 and 2 wait in their
# exchange, although neither expects anything of rank 1. After 30 minutes:
#
# ```text
# RuntimeError: [.../gloo/transport/tcp/unbound_buffer.cc:77] Timed out waiting 1800000ms for recv
# operation to complete
# ```


# %%
@mistake("hangs", ranks=3)
def rank_without_tokens(rank, world_size, device):
    splits = [0, 0, 0] if rank == 1 else [1, 0, 1]
    tokens = torch.arange(sum(splits), device=device) + 10 * rank
    received = torch.full_like(tokens, -1)
    if len(tokens) > 0:
        dist.all_to_all_single(received, tokens, splits, splits)
    count = torch.tensor([len(tokens)], device=device)
    dist.all_reduce(count)
    check(count, torch.tensor([4]), "all_reduce(SUM)")


# %%
if __name__ == "__main__":
    run(rank_without_tokens, folded=True)

# %% [markdown]
# <details><summary>What is wrong?</summary>
#
# **Cause: a rank stays away because it has nothing to send.** Ranks 0 and 2 cannot know this. In
# `all_to_all_single`, a size of 0 is a size like any other, so every rank takes part in the
# exchange with every rank.
#
# **Cure.** Make the call on every rank, if need be with an empty tensor and sizes of 0.
#
# **Early.** Let no `if` that looks at a rank's own data stand above a collective.
#
# </details>


# %%
@cure(ranks=3)
def exchange_nothing(rank, world_size, device):
    splits = [0, 0, 0] if rank == 1 else [1, 0, 1]
    tokens = torch.arange(sum(splits), device=device) + 10 * rank
    received = torch.full_like(tokens, -1)
    dist.all_to_all_single(received, tokens, splits, splits)
    check(received, torch.tensor([[0, 20], [], [1, 21]][rank], dtype=torch.int64), "all_to_all")
    count = torch.tensor([len(tokens)], device=device)
    dist.all_reduce(count)
    check(count, torch.tensor([4]), "all_reduce(SUM)")
    return {"received": received, "count": count}


# %%
if __name__ == "__main__":
    run(exchange_nothing, folded=True)

# %% [markdown]
# ## Fix it yourself
#
# In your folder of [exercises](../../README.md#exercises):
#
# ```sh
# collectives practice repair_the_dtype
# ```
#
# Next lesson: [buffers](../../notebooks/mistakes/buffers.ipynb), in which the ranks agree, but a
# rank looks into the wrong memory.

# %%
STEPS = [
    add_losses,
    a_sum_and_a_count,
    count_samples,
    one_dtype,
    share_the_best_model,
    agree_on_the_root,
    sum_over_three_ranks,
    one_reduction,
    tokens_for_two_experts,
    exchange_the_splits,
    gather_pieces,
    pad_and_cut,
    rank_without_tokens,
    exchange_nothing,
]
