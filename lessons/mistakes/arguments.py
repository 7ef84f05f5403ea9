# %% [markdown]
"""
# arguments

All ranks make the same call at the same time, and one of them passes something else: a length, a dtype, a root, a reduction, sizes.

You will see that hardly any of this is checked: most of it ends in wrong numbers, some in a process that is gone without a
traceback. Each mistake runs in ranks of its own for a second or two, and is then cured.

    python lessons/mistakes/arguments.py
    torchrun --nproc-per-node 4 lessons/mistakes/arguments.py

To run it, clone the repository and type `make tour`, or `pip install -e .` where you already have torch.
"""

# %%
from collectives import check
from collectives.lesson import cure, mistake, run
import torch
import torch.distributed as dist

# %% [markdown]
# ## Another length
#
# **Symptom.** The last batch of rank 1 is short. Rank 1 goes on with wrong sums, rank 0 loses it.


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
# **Cause.** Nobody tells the other side how long its tensor is: each cuts its own into pieces and expects pieces of that size.
# With other lengths the same mistake kills a process.
#
# **Cure.** Reduce what has the same shape on every rank: a sum and a count.
#
# **Early.** `TORCH_DISTRIBUTED_DEBUG=DETAIL` compares shapes and dtypes. `drop_last=True` makes the question go away.


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
# **Symptom.** Numbers that are absurd on rank 0, and nearly right on the others, which is worse.


# %%
@mistake("wrong numbers", ranks=3)
def another_dtype(rank, world_size, device):
    count = torch.tensor([rank + 1], dtype=torch.int32 if rank == 0 else torch.float32, device=device)
    dist.all_reduce(count)
    check(count.to(torch.float32), torch.tensor([6.0]), "all_reduce(SUM)")


# %%
if __name__ == "__main__":
    run(another_dtype)

# %% [markdown]
# **Cause.** Bytes travel, not numbers. An int32 of 1 is a float32 of about 0; the sum of the other two is left.
#
# **Cure.** Name the dtype where the tensor is made, the same for all.
#
# **Early.** Suspect every tensor made from Python numbers: `torch.tensor([0])` and `torch.tensor([0.0])` differ in dtype.


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
# **Symptom.** The rank with the best model hands it to the others. All wait.


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
# **Cause.** A root that is worked out from local data is another one on every rank. Here both send and nobody receives.
#
# **Cure.** Let the ranks agree first: gather the scores, and take the same best everywhere.
#
# **Early.** `src` and `dst` should be constants, or come out of a collective. DETAIL does not compare them.


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
# **Symptom.** A plausible number, the same on every rank, and wrong. No tool of torch says a word.


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
# **Cause.** Every rank applies its own reduction to what passes by. The reduction itself never travels.
#
# **Cure.** The same reduction on every rank.
#
# **Early.** Try the call once with numbers whose answer you know in your head. That is all that these lessons do, too.


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
# **Symptom.** Tokens go to their experts, and a process is gone: no traceback, only a signal.


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
# **Cause.** What I send to you is what you must expect from me: my output sizes are a column of everybody's input sizes, not my own
# row. Rank 1 made room for two tokens and got three.
#
# **Cure.** Exchange the sizes first. It is the same call, with one number for each rank.
#
# **Early.** After the sizes are known, allocate the output from them: then it cannot be too short.


# %%
@cure(ranks=2)
def exchange_the_splits(rank, world_size, device):
    splits = [1, 3] if rank == 0 else [2, 2]
    tokens = torch.arange(4, device=device) + 10 * rank
    sizes = torch.full((world_size,), -1, device=device)
    dist.all_to_all_single(sizes, torch.tensor(splits, device=device))
    received = torch.full((sizes.sum().item(),), -1, device=device)
    dist.all_to_all_single(received, tokens, output_split_sizes=sizes.tolist(), input_split_sizes=splits)
    check(received, torch.tensor([[0, 10, 11], [1, 2, 3, 12, 13]][rank]), "all_to_all_single")
    return {"sends": splits, "expects": sizes, "received": received}


# %%
if __name__ == "__main__":
    run(exchange_the_splits)

# %% [markdown]
# ## Gathering uneven pieces
#
# **Symptom.** For once, an error, on every rank, and it says what is wrong.


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
# **Cause.** gloo gathers pieces of one shape only, whatever the docstring promises. (Give every rank a list of pieces that are all
# as long as its own, and the check passes: then a process dies.)
#
# **Cure.** Pad to the longest, gather, cut. Or `all_gather_object`, if it is small.
#
# **Early.** Validation sets seldom divide evenly. Try with one sample too many.


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
