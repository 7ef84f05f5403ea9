# %% [markdown]
"""
# arguments

All ranks make the same call at the same time, but they pass different arguments: a length, a dtype,
a root, a reduction, sizes.

You will see that hardly any of this is checked. Most of it ends in wrong numbers, some of it in a
process that dies without a traceback. Each mistake runs in ranks of its own for a second or two.
Then its cure runs.

    python lessons/mistakes/arguments.py
    torchrun --nproc-per-node 4 lessons/mistakes/arguments.py
"""

# %%
from collectives import check
from collectives.lesson import cure, mistake, run
import torch
import torch.distributed as dist

# %% [markdown]
# ## Another length
#
# **Symptom.** The last batch of rank 1 is short. Rank 1 goes on with wrong sums. Rank 0 still waits
# for a number and loses its connection:
#
# ```text
# RuntimeError: [.../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:21659. This is typically caused by a
# remote worker crashing. Check the logs of the remote worker before reporting an error.
# ```


# %%
@mistake("wrong numbers", ranks=2)
def another_length(rank, world_size, device):
    losses = torch.ones(4 if rank == 0 else 3, device=device)
    dist.all_reduce(losses)
    check(losses, torch.full((len(losses),), 2.0), "all_reduce(SUM)")


# %%
if __name__ == "__main__":
    run(another_length)

# %% [markdown]
# **Cause.** A rank does not tell the others how long its tensor is. Each rank cuts its own tensor
# into pieces and expects pieces of the same size from the others. With other lengths, the same
# mistake kills a process.
#
# **Cure.** Reduce something that has the same shape on every rank: a sum and a count.
#
# **Early.** `drop_last=True` avoids short batches. `TORCH_DISTRIBUTED_DEBUG=DETAIL` compares shapes
# and dtypes:
#
# ```text
# RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective:
# CollectiveFingerPrint(SequenceNumber=0, OpType=ALLREDUCE, TensorShape=[4], ... but Rank 1 is running collective:
# CollectiveFingerPrint(SequenceNumber=0, OpType=ALLREDUCE, TensorShape=[3], ...
# ```


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
    run(a_sum_and_a_count)

# %% [markdown]
# ## Another dtype
#
# **Symptom.** The number of rank 0 is absurd: 1084227584. The numbers of the others are plausible,
# which is worse.


# %%
@mistake("wrong numbers", ranks=3)
def another_dtype(rank, world_size, device):
    count = torch.tensor(
        [rank + 1], dtype=torch.int32 if rank == 0 else torch.float32, device=device
    )
    dist.all_reduce(count)
    check(count.to(torch.float32), torch.tensor([6.0]), "all_reduce(SUM)")


# %%
if __name__ == "__main__":
    run(another_dtype)

# %% [markdown]
# **Cause.** What travels is bytes, and each rank reads them in its own dtype. Ranks 1 and 2 get 5.0
# from 2.0 + 3.0. Rank 0 reads the four bytes of 5.0 as an integer, which is 1084227584, and adds
# its own 1. (The check shows it as a float32, which is too coarse to show the 1.) The others read
# the bytes of this integer as a float32 again: 5.000000476837158, the next number after 5.0.
#
# **Cure.** Name the dtype where the tensor is made, the same on all ranks.
#
# **Early.** If a count is about a billion, suspect a float32 that is read as an integer. Check
# every tensor that is made from Python numbers: `torch.tensor([0])` and `torch.tensor([0.0])`
# differ in dtype.


# %%
@cure(ranks=3)
def one_dtype(rank, world_size, device):
    count = torch.tensor([rank + 1], dtype=torch.float32, device=device)
    dist.all_reduce(count)
    check(count, torch.tensor([6.0]), "all_reduce(SUM)")
    return {"count": count}


# %%
if __name__ == "__main__":
    run(one_dtype)

# %% [markdown]
# ## Everybody is the root
#
# **Symptom.** The rank with the best model should send it to the others. All ranks wait. After 30
# minutes:
#
# ```text
# RuntimeError: [.../gloo/transport/tcp/unbound_buffer.cc:129] Timed out waiting 1800000ms for send operation to complete
# ```


# %%
@mistake("hangs", ranks=2)
def everybody_is_the_root(rank, world_size, device):
    model = torch.tensor([rank], device=device)
    dist.broadcast(model, src=rank)  # "mine is the best": each has looked at its own score only
    check(model, torch.tensor([1]), "broadcast")


# %%
if __name__ == "__main__":
    run(everybody_is_the_root)

# %% [markdown]
# **Cause.** Each rank chooses the root from its own data, so each chooses a different one. Here
# both send and no rank receives.
#
# **Cure.** Let the ranks agree first: gather the scores, then take the same best one on every rank.
#
# **Early.** `src` and `dst` should be constants, or the result of a collective. DETAIL does not
# compare them.


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
    run(agree_on_the_root)

# %% [markdown]
# ## Another reduction
#
# **Symptom.** Every rank has the same number. It is plausible, and wrong. No tool of torch says a
# word.


# %%
@mistake("wrong numbers", ranks=3)
def another_reduction(rank, world_size, device):
    x = torch.tensor([rank + 1], device=device)
    dist.all_reduce(x, op=dist.ReduceOp.MAX if rank == 0 else dist.ReduceOp.SUM)
    check(x, torch.tensor([6]), "all_reduce(SUM)")


# %%
if __name__ == "__main__":
    run(another_reduction)

# %% [markdown]
# **Cause.** The reduction itself does not travel. Each rank applies its own reduction to the
# numbers that arrive. Here ranks 1 and 2 add: 2 + 3 = 5. Rank 0 takes the maximum of its own 1 and
# this 5, so the result is 5. Every rank receives this result.
#
# **Cure.** Use the same reduction on every rank.
#
# **Early.** Try the call once with numbers whose answer you can work out in your head. These
# lessons do just that.


# %%
@cure(ranks=3)
def one_reduction(rank, world_size, device):
    x = torch.tensor([rank + 1], device=device)
    dist.all_reduce(x, op=dist.ReduceOp.SUM)
    check(x, torch.tensor([6]), "all_reduce(SUM)")
    return {"x": x}


# %%
if __name__ == "__main__":
    run(one_reduction)

# %% [markdown]
# ## Split sizes of one's own
#
# **Symptom.** Tokens go to their experts, and a process dies by SIGABRT (exit status -6). There is
# no Python traceback, only this on its stderr:
#
# ```text
# terminate called after throwing an instance of 'gloo::EnforceNotMet'
#   what():  [enforce fail at .../gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 24 vs 16. Received data size
#   doesn't match expected size. Is there a distributed collective mismatch in your code?
# ```


# %%
@mistake("dies", ranks=2)
def my_splits_both_ways(rank, world_size, device):
    splits = [1, 3] if rank == 0 else [2, 2]
    tokens = torch.arange(4, device=device) + 10 * rank
    received = torch.full((4,), -1, device=device)
    dist.all_to_all_single(received, tokens, output_split_sizes=splits, input_split_sizes=splits)
    check(received, torch.tensor([[0, 10, 11], [1, 2, 3, 12, 13]][rank]), "all_to_all_single")


# %%
if __name__ == "__main__":
    run(my_splits_both_ways)

# %% [markdown]
# **Cause.** If you send me three tokens, I must expect three from you. My output sizes are a column
# in the table of everybody's input sizes, not my own row. Rank 1 made room for two tokens (16
# bytes) and got three (24 bytes).
#
# **Cure.** Exchange the sizes first, with the same call and one number for each rank.
#
# **Early.** Allocate the output from the sizes that you received. Then it cannot be too short.


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
    run(exchange_the_splits)

# %% [markdown]
# ## Gathering uneven pieces
#
# **Symptom.** For once there is an error on every rank, and it says what is wrong:
#
# ```text
# RuntimeError: ProcessGroupGloo::allgather: invalid tensor size at index 1 (expected (1), got (2))
# ```


# %%
@mistake("raises an error", ranks=3)
def uneven_pieces(rank, world_size, device):
    mine = torch.full((rank + 1,), rank, device=device)
    pieces = [torch.full((number + 1,), -1, device=device) for number in range(world_size)]
    dist.all_gather(pieces, mine)
    check(torch.cat(pieces), torch.tensor([0, 1, 1, 2, 2, 2]), "all_gather")


# %%
if __name__ == "__main__":
    run(uneven_pieces)

# %% [markdown]
# **Cause.** gloo only gathers pieces of one shape, although the docstring promises more. (If all
# pieces in a rank's list are as long as its own piece, this check passes. Then a process dies.)
#
# **Cure.** Pad every piece to the longest, gather, and cut. For small data, use
# `all_gather_object`.
#
# **Early.** The samples of a validation set seldom divide evenly among the ranks. Test with one
# sample more than divides.


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
    run(pad_and_cut)

# %%
STEPS = [
    another_length,
    a_sum_and_a_count,
    another_dtype,
    one_dtype,
    everybody_is_the_root,
    agree_on_the_root,
    another_reduction,
    one_reduction,
    my_splits_both_ways,
    exchange_the_splits,
    uneven_pieces,
    pad_and_cut,
]
