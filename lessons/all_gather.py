# %% [markdown]
"""
# all_gather

The weights of a large layer lie in pieces, one on each rank, and the layer needs all of them when
it runs. `all_gather` gives every rank the tensors of all ranks, in rank order.

You will see the pieces arrive in a list and in one tensor; pieces of unequal lengths; an evaluation
that counts no example twice; a gradient that flows back to the other ranks; and Python objects, one
of which runs code on the rank that receives it.

    python lessons/all_gather.py
    torchrun --nproc-per-node 4 lessons/all_gather.py
"""

# %%
from collectives import check
from collectives.lesson import run
import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler

# %% [markdown]
# ## The call
#
# You make a list with one tensor for each rank, and `all_gather` fills it. `x` stays as it is.


# %%
def all_gather(rank, world_size, device):
    x = 10 * (rank + 1) + torch.arange(2, device=device)
    # subtle: n tensors; `[torch.empty(2)] * n` is one tensor n times
    pieces = [torch.full_like(x, -1) for _ in range(world_size)]
    dist.all_gather(pieces, x)
    # proof
    owners = [10 * (r + 1) + torch.arange(2) for r in range(world_size)]
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
# | 0 | [10, 11] | [[10, 11], [20, 21], [30, 31], [40, 41]] |
# | 1 | [20, 21] | [[10, 11], [20, 21], [30, 31], [40, 41]] |
# | 2 | [30, 31] | [[10, 11], [20, 21], [30, 31], [40, 41]] |
# | 3 | [40, 41] | [[10, 11], [20, 21], [30, 31], [40, 41]] |
#
# The tens name the rank: 10 and 11 come from rank 0, 40 and 41 from rank 3. Every rank ends with
# the same list, and piece r comes from rank r. In the picture every row on the right has the four
# colours in the same order.

# %% [markdown]
# ### Into one tensor
#
# `all_gather_into_tensor` fills one tensor instead of a list (torch 2.13 adds the name
# `all_gather_single`). The pieces can stand end to end, in a tensor of 2 n elements, or as the rows
# of a table. gloo refuses a table of shape (n, 2) for pieces of shape (2). But `table.view(-1)` is
# the same memory in one dimension, and gloo takes that.


# %%
def into_one_tensor(rank, world_size, device):
    x = 10 * (rank + 1) + torch.arange(2, device=device)
    end_to_end = torch.full((2 * world_size,), -1, device=device)
    dist.all_gather_into_tensor(end_to_end, x)
    table = torch.full((world_size, 2), -1, device=device)
    dist.all_gather_into_tensor(table.view(-1), x)
    # proof
    rows = torch.stack([10 * (r + 1) + torch.arange(2) for r in range(world_size)])
    check([end_to_end, table], [rows.flatten(), rows], "all_gather_into_tensor")
    return {"end to end": end_to_end, "table": table}


# %%
if __name__ == "__main__":
    run(into_one_tensor)

# %% [markdown]
# ### Unequal lengths
#
# The docstring says that the tensors may have unequal sizes. gloo [refuses
# that](../notebooks/mistakes/arguments.ipynb), and NCCL does it with one broadcast for each rank
# (documented). What works everywhere takes four steps: gather the lengths, pad every piece to the
# longest, gather the pieces, and trim them.
#
# Here rank r has r + 1 numbers.


# %%
def unequal_lengths(rank, world_size, device):
    x = 10 * (rank + 1) + torch.arange(rank + 1, device=device)
    lengths = torch.full((world_size,), -1, device=device)
    dist.all_gather_into_tensor(lengths, torch.tensor([len(x)], device=device))
    lengths = lengths.tolist()
    padded = torch.nn.functional.pad(x, (0, max(lengths) - len(x)), value=-1)
    pieces = [torch.full_like(padded, -2) for _ in lengths]
    dist.all_gather(pieces, padded)
    trimmed = [piece[:length] for piece, length in zip(pieces, lengths, strict=True)]
    held = sum(len(piece) for piece in pieces)
    # proof
    owners = [10 * (r + 1) + torch.arange(r + 1) for r in range(world_size)]
    check(trimmed, owners, "all_gather, padded and trimmed")
    check(held, world_size**2, "the length of all padded pieces")
    return {"x": x, "trimmed": trimmed, "held": held}


# %% [markdown]
# **Predict first.** The four ranks have 1, 2, 3 and 4 numbers, ten together. How many numbers do
# the n buffers of a rank hold after the second call? Write it down.

# %%
if __name__ == "__main__":
    run(unequal_lengths)

# %% [markdown]
# <details><summary>Answer</summary>
#
# They hold 16: four pieces, each as long as the longest. The -1 in the picture are the
# padding; trimming removes them. If one rank has a thousand numbers and the others have one,
# padding makes the call almost four times as large.
#
# </details>

# %% [markdown]
# ### An evaluation that counts no example twice
#
# `DistributedSampler` deals out the examples like cards: rank 0 gets the first, rank 1 the second,
# and so on. Each rank must get the same number of examples, so at the end the sampler begins again
# with the first examples. Ten examples on four ranks become twelve.
#
# Gather the predictions, put them back in the order in which they were dealt, and drop all beyond
# the tenth. Here the examples are 1 to 10, and the prediction for an example is the example itself.


# %%
def without_duplicates(rank, world_size, device):
    examples = torch.arange(1, 11, device=device)
    mine = examples[list(DistributedSampler(examples, shuffle=False))]
    pieces = [torch.full_like(mine, -1) for _ in range(world_size)]
    dist.all_gather(pieces, mine)
    dealt = torch.stack(pieces, dim=1).flatten()  # the first of every rank, the second, ...
    exact = dealt[: len(examples)]
    # proof: with p repeated examples, 1 to p count twice
    padding = -10 % world_size
    check(exact, torch.arange(1, 11), "all_gather, duplicates dropped")
    check(dealt.sum().item(), 55 + padding * (padding + 1) // 2, "the sum with the duplicates")
    return {"own": mine, "dealt": dealt, "sum": dealt.sum(), "exact": exact.sum()}


# %% [markdown]
# **Predict first.** The sum of 1 to 10 is 55. What is the sum of the twelve numbers that are
# gathered? Write it down.

# %%
if __name__ == "__main__":
    run(without_duplicates)

# %% [markdown]
# <details><summary>Answer</summary>
#
# It is 58. The sampler starts again at the beginning, so 1 and 2 count twice. They are grey in the
# picture, because two ranks brought them. An accuracy or a loss over these twelve is wrong in the
# same way, and [nothing tells you](../notebooks/mistakes/data.ipynb). The cure also works with
# `shuffle=True` (in the shuffled order), because the repeated examples are always dealt last.
#
# </details>

# %% [markdown]
# ### A gradient that flows back
#
# In contrastive learning each rank compares its own example with the examples of all ranks. Here an
# example is one number, and the loss of a rank is `x * sum(pieces)`. The losses of all ranks add up
# to (1 + 2 + 3 + 4) squared, which is 100, and the gradient of that is 20 for each x.
#
# But what `all_gather` fills in are new tensors, and to autograd they are constants. The step tries
# three ways: the pieces as they come; the pieces with x itself put back in its place; and an
# autograd function that gathers forward, and adds up gradients backward.


# %%
class Gathered(torch.autograd.Function):
    """The tensors of all ranks. Backward, each rank gets all ranks' gradients for its own."""

    @staticmethod
    def forward(ctx, x):
        pieces = [torch.full_like(x, -1) for _ in range(dist.get_world_size())]
        dist.all_gather(pieces, x)
        return torch.stack(pieces)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous().clone()  # all_reduce overwrites it, and wants no gaps
        dist.all_reduce(gradient, op=dist.ReduceOp.SUM)
        return gradient[dist.get_rank()]


def gradient_flows_back(rank, world_size, device):
    x = torch.tensor([rank + 1.0], device=device, requires_grad=True)
    pieces = [torch.full((1,), -1.0, device=device) for _ in range(world_size)]
    dist.all_gather(pieces, x)
    (as_they_come,) = torch.autograd.grad(x * sum(pieces), x)
    pieces[rank] = x
    (x_put_back,) = torch.autograd.grad(x * sum(pieces), x)
    (gathered,) = torch.autograd.grad(x * sum(Gathered.apply(x)), x)
    # proof
    total = world_size * (world_size + 1) / 2
    check(as_they_come, torch.tensor([total]), "the gradient of constants")
    check(x_put_back, torch.tensor([total + rank + 1]), "the gradient of the own loss")
    check(gathered, torch.tensor([2 * total]), "the gradient of all losses")
    return {"as they come": as_they_come, "x put back": x_put_back, "Gathered": gathered}


# %% [markdown]
# **Predict first.** The examples are 1, 2, 3 and 4. Which gradient does rank 0 get in each of the
# three ways? Write down three numbers; one of them is 20.

# %%
if __name__ == "__main__":
    run(gradient_flows_back)

# %% [markdown]
# <details><summary>Answer</summary>
#
# They are 10, 11 and 20. As they come, the pieces are constants, so the loss is x times 10. With x
# put back, the gradient is right for the loss of this rank: 10 from the first factor and x = 1 from
# the sum. What is missing is the part that x has in the losses of the other ranks. `Gathered`
# brings it: each rank has a gradient for each piece, and the sum over the ranks is what the owner
# needs.
#
# Put x back if the gradient should count only the loss of this rank. Use `Gathered` if it should
# count the losses of all ranks. torch has this function as well:
# `torch.distributed.nn.functional.all_gather`, which 2.13 calls deprecated.
#
# </details>

# %% [markdown]
# ### Objects, and why only from ranks that you trust
#
# `all_gather_object` gathers anything that pickle can write, of any length. Inside, it pads and
# trims as above. But a pickle is a small program: an object may say "to rebuild me, call this
# function". Each rank here sends a laugh and a `Stowaway`, and the `Stowaway` asks for a call of
# `dist.get_rank()`.


# %%
class Stowaway:
    def __reduce__(self):  # pickle asks: which function rebuilds you, with which arguments?
        return dist.get_rank, ()


def pickles_run_code(rank, world_size, device):
    arrived = [None] * world_size
    dist.all_gather_object(arrived, ["ha" * (rank + 1) + "!", Stowaway()])
    # proof
    expected = [["ha" * (r + 1) + "!", rank] for r in range(world_size)]
    check(arrived, expected, "all_gather_object")
    return {"arrived": arrived}


# %% [markdown]
# **Predict first.** Rank 2 receives four laughs and four times what became of a `Stowaway`. Which
# four values are these? Write them down.

# %%
if __name__ == "__main__":
    run(pickles_run_code)

# %% [markdown]
# <details><summary>Answer</summary>
#
# They are 2, 2, 2, 2. No `Stowaway` arrives: the function runs in the process of the *receiver*,
# while it unpickles, and returns the receiver's rank. Your own code sees the result only
# afterwards. It could have been any function, with any arguments. If text is all you need, gather
# its bytes, padded and trimmed: what arrives may be wrong, but it runs nothing.
#
# </details>

# %%
STEPS = [
    all_gather,
    into_one_tensor,
    unequal_lengths,
    without_duplicates,
    gradient_flows_back,
    pickles_run_code,
]

# %% [markdown]
# ## The cost
#
# S is the size of the *whole* result in bytes, so each rank gives S / n. A ring takes n - 1 steps,
# and in each of them every rank passes on one piece. In all it sends (n - 1) / n * S bytes, half of
# what an all_reduce of S bytes sends.
#
# In memory the result takes S bytes on every rank, n times the rank's own piece. To add up the
# pieces, use `all_reduce`, which needs room for one. NCCL fills the list form from a flat buffer of
# S more bytes (documented); the tensor form needs no such buffer. `all_gather_object` first makes
# another call for the lengths, and it pickles.
#
# Bus-bandwidth factor: `(n - 1) / n`. The algorithm bandwidth is S / time, with the bytes of the
# whole result. Multiply it by this factor to compare it with the bandwidth of the links.

# %% [markdown]
# ## Pitfalls
#
# - gloo compares the sizes in a rank's own list with its own tensor, but not with the other ranks'.
#   If every rank makes all its buffers as long as its own tensor, and the tensors differ, nothing
#   is refused, and [a process dies](../notebooks/mistakes/arguments.ipynb).
# - Input and output must have the same dtype. int64 into float32 is refused.
# - `torch.cat(pieces)` puts all examples of rank 0 first. A sampler deals them out in turn, so
#   labels in the order of the data set no longer match.
# - The list for `all_gather_object` must have n entries before the call.
# - On NCCL, `all_gather_object` sends its bytes through the current GPU: call
#   `torch.cuda.set_device` first (documented).
# - Use `all_gather_object` only among the ranks of your own job.

# %% [markdown]
# ## Where it is used
#
# FSDP, which keeps a model's weights in pieces, gathers those of a layer just before they are
# needed, and drops them afterwards.
# Evaluation gathers predictions. Contrastive learning gathers the examples of all ranks. Sequence
# and tensor parallelism put activations back together from their pieces.

# %% [markdown]
# ## Change and try
#
# Each of these is one change in one cell. Make it, run that cell and the one after it, and undo it.
#
# 1. In `all_gather`, change `[torch.full_like(x, -1) for _ in range(world_size)]` to
#    `[torch.full_like(x, -1)] * world_size`. The list has four entries, and there is no error. What
#    do they hold?
#
#    <details><summary>Answer</summary>
#
#    You get `got [[[40, 41], [40, 41], [40, 41], [40, 41]]`. It is one tensor four times, and the
#    piece that is written last stays.
#
#    </details>
#
# 2. In `into_one_tensor`, change `table.view(-1), x` to `table, x`. The table has the right number
#    of elements. What does gloo say?
#
#    <details><summary>Answer</summary>
#
#    You get `invalid tensor size at index 0 (expected (2), got (1, 2))`. gloo cuts the table into
#    rows of shape (1, 2), and a piece has shape (2).
#
#    </details>
#
# 3. In `pickles_run_code`, change `[None] * world_size` to `[]`. Does the call append what arrives?
#
#    <details><summary>Answer</summary>
#
#    You get `IndexError`. It assigns to the entries of the list, and there are none.
#
#    </details>

# %% [markdown]
# ## Write it yourself
#
# Write `my_all_gather(pieces, x)`, which fills the list as `dist.all_gather` does. The only call
# that it may make is `broadcast`.
#
# <details><summary>One way to write it</summary>
#
# ```python
# def my_all_gather(pieces, x):
#     pieces[dist.get_rank()].copy_(x)
#     for root, piece in enumerate(pieces):
#         dist.broadcast(piece, src=root)
#
#
# def try_my_all_gather(rank, world_size, device):
#     x = 10 * (rank + 1) + torch.arange(2, device=device)
#     pieces = [torch.full_like(x, -1) for _ in range(world_size)]
#     my_all_gather(pieces, x)
#     owners = [10 * (r + 1) + torch.arange(2) for r in range(world_size)]
#     check(pieces, owners, "my_all_gather")
#     return {"x": x, "pieces": pieces}
# ```
#
# </details>

# %% [markdown]
# ## Read on
#
# - E. Chan, M. Heimlich, A. Purkayastha and R. van de Geijn, *Collective communication: theory,
#   practice, and experience* (2007): algorithms for all these calls, and their costs.
# - Y. Zhao and others, [*PyTorch FSDP*](https://arxiv.org/abs/2304.11277) (2023): weights in
#   pieces, gathered when a layer runs.
# - A. Radford and others, [*Learning Transferable Visual Models From Natural Language
#   Supervision*](https://arxiv.org/abs/2103.00020) (2021): CLIP, where every example is compared
#   with those of all ranks.
#
# In PyTorch's documentation:
#
# - [`all_gather`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_gather)
# - [`all_gather_into_tensor`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_gather_into_tensor)
# - [`all_gather_object`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_gather_object)
# - [`all_reduce`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_reduce)
# - [`broadcast`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.broadcast)
# - [`ReduceOp`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.ReduceOp)
# - [`get_rank`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.get_rank)
# - [`get_world_size`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.get_world_size)
#
# Next lesson: [reduce_scatter](../notebooks/reduce_scatter.ipynb), which computes just the piece of
# a sum that a rank needs.
