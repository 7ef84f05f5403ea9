# %% [markdown]
"""
# all_gather

`all_gather` gives every rank the tensors of all ranks, in rank order. When the weights of a large
layer lie in pieces, one on each rank, the layer needs all of them to run.

You will see pieces of unequal lengths; an evaluation that counts no example twice; and Python
objects, one of which runs code on the rank that receives it.

    python lessons/all_gather.py
    torchrun --nproc-per-node 4 lessons/all_gather.py
"""

# %%
import math
from collectives import check, run
import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler

# %% [markdown]
# ## The call
#
# You make a list with one tensor for each rank, and `all_gather` fills it. `x` stays as it is.


# %%
def all_gather(rank, world_size, device):
    x = 10 * rank + torch.tensor([1, 2], device=device)
    # subtle: n tensors; `[torch.empty(2)] * n` is one tensor n times
    pieces = [torch.full_like(x, -1) for _ in range(world_size)]
    dist.all_gather(pieces, x)
    # proof
    owners = [10 * r + torch.tensor([1, 2]) for r in range(world_size)]
    check([pieces, x], [owners, owners[rank]], "all_gather")
    return {"x": x, "pieces": pieces}


# %%
if __name__ == "__main__":
    run(all_gather)

# %% [markdown]
# Four ranks print this:
#
# | rank | x | pieces |
# |---|---|---|
# | 0 | [1, 2] | [[1, 2], [11, 12], [21, 22], [31, 32]] |
# | 1 | [11, 12] | [[1, 2], [11, 12], [21, 22], [31, 32]] |
# | 2 | [21, 22] | [[1, 2], [11, 12], [21, 22], [31, 32]] |
# | 3 | [31, 32] | [[1, 2], [11, 12], [21, 22], [31, 32]] |
#
# The tens name the rank: piece r is that of rank r, on every rank.

# %% [markdown]
# ### Into one tensor
#
# `all_gather_single` fills one tensor instead of a list. In older code you meet it as
# `all_gather_into_tensor`: that name still works, but torch 2.13 warns that it is deprecated. The
# pieces lie end to end, in a tensor of 2 n elements. gloo refuses a table of shape (n, 2) for
# pieces of shape (2), but takes `table.view(-1)`, the same memory in one dimension: a
# [view](../docs/glossary.md#view).


# %%
def into_one_tensor(rank, world_size, device):
    x = 10 * rank + torch.tensor([1, 2], device=device)
    end_to_end = torch.full((2 * world_size,), -1, device=device)
    dist.all_gather_single(end_to_end, x)
    table = torch.full((world_size, 2), -1, device=device)
    dist.all_gather_single(table.view(-1), x)
    # proof
    rows = torch.stack([10 * r + torch.tensor([1, 2]) for r in range(world_size)])
    check([end_to_end, table], [rows.flatten(), rows], "all_gather_single")
    return {"end to end": end_to_end, "table": table}


# %%
if __name__ == "__main__":
    run(into_one_tensor)

# %% [markdown]
# ### Unequal lengths
#
# All ranks must pass the same length, although the docstring allows others. On gloo a buffer of
# another length than the rank's own piece [raises an error](../notebooks/mistakes/arguments.ipynb),
# and a longer piece from another rank kills the process. So gather the lengths,
# [pad](../docs/glossary.md#padding) every piece to the longest, gather the pieces, and trim them.
# Here rank r holds r + 1 numbers.

# %% [markdown]
# **Predict first.** The four ranks hold 1, 2, 3 and 4 numbers, ten together. How many numbers do
# the n buffers of a rank hold after the second call?


# %%
def unequal_lengths(rank, world_size, device):
    x = 10 * rank + torch.arange(1, rank + 2, device=device)
    lengths = torch.full((world_size,), -1, device=device)
    dist.all_gather_single(lengths, torch.tensor([len(x)], device=device))
    lengths = lengths.tolist()
    padded = torch.nn.functional.pad(x, (0, max(lengths) - len(x)), value=-1)
    pieces = [torch.full_like(padded, -2) for _ in lengths]
    dist.all_gather(pieces, padded)
    trimmed = [piece[:length] for piece, length in zip(pieces, lengths, strict=True)]
    held = sum(len(piece) for piece in pieces)
    # proof
    owners = [10 * r + torch.arange(1, r + 2) for r in range(world_size)]
    check(trimmed, owners, "all_gather, padded and trimmed")
    check(held, world_size**2, "the length of all padded pieces")
    return {"x": x, "trimmed": trimmed, "held": held}


# %%
if __name__ == "__main__":
    run(unequal_lengths)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 16: four pieces, each as long as the longest.
#
# </details>

# %% [markdown]
# ### An evaluation that counts no example twice
#
# `DistributedSampler` gives the first example to rank 0, the second to rank 1, and so on, and then
# starts over at rank 0. Each rank gets equally many, so at the end the sampler repeats the first
# examples: ten examples on four ranks become twelve. Gather the predictions, put them in the order
# of the examples, and drop all after the tenth. Here each rank makes position codes in place of
# predictions.

# %% [markdown]
# **Predict first.** Rank 2 makes the codes 21, 22 and 23. The last two of the twelve are dropped.
# Which ones are these?


# %%
def without_duplicates(rank, world_size, device):
    mine = list(DistributedSampler(range(10), shuffle=False))
    codes = 10 * rank + torch.arange(1, len(mine) + 1, device=device)  # one for each example
    pieces = [torch.full_like(codes, -1) for _ in range(world_size)]
    dist.all_gather(pieces, codes)
    in_order = torch.stack(pieces, dim=1).flatten()  # the first of every rank, the second, ...
    exact = in_order[:10]
    # proof: example e is number e // n of rank e % n
    expected = [10 * (e % world_size) + e // world_size + 1 for e in range(10)]
    check(exact, torch.tensor(expected), "all_gather, duplicates dropped")
    repeated = math.ceil(10 / world_size) * world_size
    check(len(in_order), repeated, "how many there are with the duplicates")
    return {"examples": mine, "codes": codes, "in order": in_order, "exact": exact}


# %%
if __name__ == "__main__":
    run(without_duplicates)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 23 and 33. The third examples of ranks 2 and 3 are examples 0 and 1 again. A mean over all twelve
# would count these two twice, and [nothing tells you](../notebooks/mistakes/data.ipynb).
#
# </details>

# %% [markdown]
# ### Objects, and why only from ranks that you trust
#
# `all_gather_object` gathers anything that [pickle](../docs/glossary.md#pickle) can write, of any
# length; inside, it pads and trims. But a pickle is a small program: an object may say "to rebuild
# me, call this function". Each rank here sends a string, of another length than the others', and
# an object of the class `RunsCode`, which asks for a call of `dist.get_rank()`.

# %% [markdown]
# **Predict first.** What does each of the four `RunsCode` objects become on rank 2?


# %%
class RunsCode:
    def __reduce__(self):  # pickle asks: which function rebuilds you, with which arguments?
        return dist.get_rank, ()


def pickles_run_code(rank, world_size, device):
    arrived = [None] * world_size
    dist.all_gather_object(arrived, ["x" * (rank + 1), RunsCode()])
    # proof
    expected = [["x" * (r + 1), rank] for r in range(world_size)]
    check(arrived, expected, "all_gather_object")
    return {"arrived": arrived}


# %%
if __name__ == "__main__":
    run(pickles_run_code)

# %% [markdown]
# <details><summary>Answer</summary>
#
# The number 2. The function runs in the process of the *receiver*, while it unpickles, and returns
# the receiver's rank. It could be any function, with any arguments. If text is all you need, gather
# its bytes, padded and trimmed: they run nothing.
#
# </details>

# %%
STEPS = [
    all_gather,
    into_one_tensor,
    unequal_lengths,
    without_duplicates,
    pickles_run_code,
]

# %% [markdown]
# ## The cost
#
# An all_gather sends half of what an all_reduce of the same size sends. S is the size of the
# *whole* result in bytes, so each rank passes S / n. In a
# [ring](../notebooks/algorithms/ring.ipynb) every rank sends one piece in each of n - 1 rounds,
# together (n - 1) / n * S bytes. The result takes S bytes on every rank. If you only want the sum
# of the pieces, use `all_reduce`: it needs the memory of one piece, and sends 2 / n as much.
#
# On gloo with four ranks on two cores, 4 KiB took 3.2 ms and an all_reduce 6.4 ms, twice as long
# (`collectives bench bus all_gather -n 4 -b 4KiB -e 16MiB -f 4096`, and the same of all_reduce).

# %% [markdown]
# ## Pitfalls
#
# - Input and output must have the same dtype. int64 into float32 is refused.
# - `all_gather` passes no gradients back. Where `backward()` must go through the gathered tensors,
#   gather them with a [functional collective](../notebooks/training/functional.ipynb). The function
#   that was made for it before, `torch.distributed.nn.functional.all_gather`, is deprecated.
# - The list of `all_gather_object` needs n entries.

# %% [markdown]
# ## On GPUs
#
# - On NCCL, `all_gather_object` sends its bytes through the current GPU, so choose it first
#   (`torch/distributed/distributed_c10d.py`: "it is the user's responsibility to ensure that this
#   is set so that each rank has an individual GPU").

# %% [markdown]
# ## Where it is used
#
# [FSDP](../docs/glossary.md#fsdp) gathers the weights of a layer just before they are needed, and
# drops them afterwards. Evaluation gathers predictions. Contrastive learning gathers the examples
# of all ranks.

# %% [markdown]
# ## Change and try
#
# Make one change, run its cell and the next one, and undo it.
#
# 1. In `all_gather`, change `[torch.full_like(x, -1) for _ in range(world_size)]` to
#    `[torch.full_like(x, -1)] * world_size`. There is no error. What is in the four entries?
#
#    <details><summary>Answer</summary>
#
#    You get `rank 0/4: got [[[31, 32], [31, 32], [31, 32], [31, 32]], [1, 2]], should be [[[1, 2],
#    [11, 12], [21, 22], [31, 32]], [1, 2]] [all_gather, gloo]`. It is one tensor four times, and
#    the piece that is written last stays.
#
#    </details>
#
# 2. In `without_duplicates`, change `torch.stack(pieces, dim=1).flatten()` to `torch.cat(pieces)`.
#    Which codes are dropped now?
#
#    <details><summary>Answer</summary>
#
#    You get `rank 0/4: got [1, 2, 3, 11, 12, 13, 21, 22, 23, 31], should be [1, 11, 21, 31, 2, 12,
#    22, 32, 3, 13] [all_gather, duplicates dropped, int64[10], gloo]`. The last two of rank 3 are
#    dropped, and the duplicate 23 of rank 2 is kept.
#
#    </details>

# %% [markdown]
# ## Write it yourself
#
# In your folder of [exercises](../README.md#exercises):
#
# ```sh
# collectives practice all_gather_from_broadcasts
# collectives practice all_gather_as_a_ring
# ```

# %% [markdown]
# ## Read on
#
# - E. Chan, M. Heimlich, A. Purkayastha and R. van de Geijn, *Collective communication: theory,
#   practice, and experience* (2007): algorithms for all these calls, and their costs.
# - Y. Zhao and others, [*PyTorch FSDP*](https://arxiv.org/abs/2304.11277) (2023): weights in
#   pieces.
#
# In PyTorch's documentation:
#
# - [`all_gather`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_gather)
# - [`all_gather_single`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_gather_single)
# - [`all_gather_object`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_gather_object)
# - [`broadcast`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.broadcast)
#
# Next lesson: [reduce_scatter](../notebooks/reduce_scatter.ipynb), which computes just the piece of
# a sum that a rank needs.
