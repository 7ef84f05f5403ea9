# %% [markdown]
"""
# gather: one rank gets the tensors of all ranks

With `gather`, one rank, the [root](../docs/glossary.md#root), receives one tensor from every rank,
in rank order.

Each of four ranks has evaluated its share of a test set, and one rank should write all answers into
one file. The other three have no use for the whole. At the end of this lesson you can collect
tensors, texts and other objects on one rank, and you know when collecting objects is dangerous.

    python lessons/gather.py
    torchrun --nproc-per-node 4 lessons/gather.py
"""

# %%
from collectives import check, needs, note_calls, run
import torch
import torch.distributed as dist

# %% [markdown]
# ## The call
#
# ```python
# dist.gather(tensor, gather_list=None, dst=None, group=None, async_op=False, group_dst=None)
# ```
#
# | argument | meaning |
# |---|---|
# | `tensor` | what this rank contributes; it stays as it is |
# | `gather_list` | on the root, one tensor for each rank, to be filled; elsewhere None |
# | `dst` | the root: its rank in the whole job; 0 unless you name one |
# | `group` | the ranks that take part; None is all of them |
# | `async_op` | True: return a [`Work`](../docs/glossary.md#work) at once |
# | `group_dst` | the root's rank in the group, in place of `dst` |
#
# `dst` names the root. Only the root passes a list of n tensors, one for each rank and its own
# among them, and the call fills them. Every other rank passes `None`, because it receives nothing.


# %%
def gather(rank, world_size, device):
    root = world_size - 1
    x = torch.tensor([10 * rank + 1, 10 * rank + 2], device=device)
    buffers = None
    if rank == root:
        buffers = [torch.full_like(x, -1) for _ in range(world_size)]
    dist.gather(x, buffers, dst=root)
    # proof: on the root; and a gather leaves x alone
    expected = [torch.tensor([10 * r + 1, 10 * r + 2]) for r in range(world_size)]
    check(buffers, expected if rank == root else None, "gather")
    check(x, expected[rank], "own tensor after gather")
    return {"own": x, "gathered": buffers}


# %%
if __name__ == "__main__":
    run(gather)

# %% [markdown]
# Four ranks print this:
#
# | rank | own | gathered |
# |---|---|---|
# | 0 | [1, 2] | - |
# | 1 | [11, 12] | - |
# | 2 | [21, 22] | - |
# | 3 | [31, 32] | [[1, 2], [11, 12], [21, 22], [31, 32]] |
#
# The tens name the rank that a number is from. In the picture, only rank 3, the root, has all four
# tensors.

# %% [markdown]
# ### One tensor in place of a list, and its size
#
# A list of n tensors is inconvenient if you want to compute with the result. So let the buffers be
# the rows of one tensor, which `unbind` returns as [views](../docs/glossary.md#view). Each rank has
# 1024 numbers of 4 bytes, which are 4096 bytes.

# %% [markdown]
# **Predict first.** How many bytes does rank 0 need for the result, and how many does rank 3 need?


# %%
def gather_into_rows(rank, world_size, device):
    calls = note_calls()  # what this rank calls from here on
    x = torch.full((1024,), 10.0 * rank + 1, device=device)
    table = rows = None
    if rank == 0:
        table = torch.full((world_size, 1024), -1.0, device=device)
        rows = list(table.unbind())
    dist.gather(x, rows, dst=0)
    bytes_gathered = table.untyped_storage().nbytes() if rank == 0 else 0
    # proof
    expected = 10.0 * torch.arange(world_size).reshape(-1, 1).expand(-1, 1024) + 1
    check(table, expected if rank == 0 else None, "gather into rows")
    check([call.name for call in calls], ["gather"], "only the root receives")
    check(bytes_gathered, 4096 * world_size if rank == 0 else 0, "bytes of the result")
    return {"bytes, own": x.untyped_storage().nbytes(), "bytes, gathered": bytes_gathered}


# %%
if __name__ == "__main__":
    run(gather_into_rows, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Rank 0 needs 4 * 4096 = 16384 bytes, and rank 3 needs 0. With `all_gather`, every rank would need
# as many as rank 0.
#
# </details>

# %% [markdown]
# ### Text, and any other object
#
# Answers are often texts of different lengths, but `gather` needs the same shape on every rank.
# [all_gather](../notebooks/all_gather.ipynb) shows how to pad and trim them. `gather_object` does
# it for you, with any object that can be [pickled](../docs/glossary.md#pickle): it turns each
# object into bytes, [pads](../docs/glossary.md#padding) these to the longest, gathers them, and
# rebuilds the objects on the root, which passes a list of n places.


# %%
def gather_text(rank, world_size, device):
    text = "ha" * (rank + 1)
    texts = [None] * world_size if rank == 0 else None
    dist.gather_object(text, texts, dst=0)
    # proof
    expected = ["ha" * (r + 1) for r in range(world_size)]
    check(texts, expected if rank == 0 else None, "gather_object")
    return {"text": text, "gathered": texts}


# %%
if __name__ == "__main__":
    run(gather_text)

# %% [markdown]
# ### Why only from ranks that you trust
#
# This convenience has a price, because a pickle is a small program: an object may say
# "to rebuild me, call this function", and whoever unpickles it makes that call. Here each rank
# sends a string, of another length than the other ranks' strings, and an object of the class
# `RunsCode`, which asks for a call of `dist.get_rank()`. `all_gather_object` gathers both on every
# rank.

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
    run(pickles_run_code, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# The number 2. The function runs in the process of the *receiver*, while it unpickles, so it
# returns the receiver's rank. It could be any function, with any arguments, which is why you should
# gather objects only among ranks that you trust. If you need text and nothing else, gather its
# bytes, padded and trimmed: they run nothing.
#
# </details>

# %% [markdown]
# ### From any source
#
# In a `gather` the root hears from every rank before it goes on. But a coordinator that hands out
# work should answer whichever rank has finished first, so it calls `recv` without `src`. This call
# takes the next message from any rank, and returns the rank of its sender. The order may differ
# from run to run.


# %%
@needs(ranks=2)
def receive_from_any(rank, world_size, device):
    calls = note_calls()  # what this rank calls from here on
    collected = {}
    if rank > 0:
        dist.send(torch.tensor([10 * rank + 1], device=device), dst=0)
    else:
        for _ in range(world_size - 1):
            message = torch.full((1,), -1, device=device)
            source = dist.recv(message)
            collected[source] = message.item()
    # proof: every other rank was heard once
    others = range(1, world_size) if rank == 0 else []
    check(collected, {other: 10 * other + 1 for other in others}, "recv(src=None)")
    sources = [call.peer for call in calls if call.name == "recv"]
    check(sources, [None for other in others], "recv names no source")
    heard = sorted(collected)
    return {"heard from": heard, "their messages": [collected[source] for source in heard]}


# %%
if __name__ == "__main__":
    run(receive_from_any)

# %%
STEPS = [gather, gather_into_rows, gather_text, pickles_run_code, receive_from_any]

# %% [markdown]
# ## The cost
#
# S is the size of the gathered whole in bytes. Each rank but the root sends its S / n bytes once,
# but the root receives (n - 1) / n * S bytes, all of them over its own
# [link](../docs/glossary.md#link). This link limits the speed, so more ranks do not make a gather
# faster.
#
# Measured on gloo, four ranks on two cores (`collectives bench bus gather -n 4 -b 4KiB -e 16MiB -f
# 4096`): 16 MiB take 6.6 ms, and an `all_gather` of the same size takes 3.2 times as long, 21 ms.
# With many ranks and small tensors, a [tree](../notebooks/algorithms/tree.ipynb) saves the root
# most of its messages.

# %% [markdown]
# ## Pitfalls
#
# - A list on a rank that is not the root is a ValueError on that rank, and a missing list on the
#   root is one there. [One rank raises](../notebooks/mistakes/processes.ipynb), and the ranks that
#   need it wait.
# - The list must be a `list`: the tuple that `unbind` or `chunk` returns is a TypeError on the
#   root.
# - Every rank must pass the same shape and dtype. On gloo, nobody notices a rank that passes less,
#   and the rest of its buffer is undefined, but a rank that passes more makes the root crash.
# - Without `dst`, the root is rank 0.

# %% [markdown]
# ## On GPUs
#
# - `gather_object` pickles on the CPU, so use `gather` for tensors
#   (`torch/distributed/distributed_c10d.py`: "inefficient as it incurs GPU -> CPU transfer since
#   tensors would be pickled").
# - With NCCL, call `torch.cuda.set_device` before `gather_object`: the bytes are moved to the
#   current GPU (`torch/distributed/distributed_c10d.py`: "it is the user's responsibility to ensure
#   that this is set so that each rank has an individual GPU").

# %% [markdown]
# ## Where it is used
#
# Evaluations and logs gather answers and timings on the rank that writes them. In
# `torch.distributed.checkpoint`, each rank describes what it will save, and rank 0 gathers these
# descriptions and makes one plan.

# %% [markdown]
# ## Change and try
#
# Make one change, run its cell and the next one, and undo it.
#
# 1. In `gather_text`, change `texts = [None] * world_size if rank == 0 else None` to `texts =
#    [None] * world_size`. Now every rank passes a list. Which ranks raise an error?
#
#    <details><summary>Answer</summary>
#
#    You get ```rank 1 raised ValueError: Argument ``gather_list`` must NOT be specified on
#    non-destination ranks.``` Ranks 2 and 3 raise the same error. Rank 0 raises none, because its
#    own call is right: it waits for the other three. If all ranks need the texts, call
#    `all_gather_object`.
#
#    </details>

# %% [markdown]
# ## Write it yourself
#
# In your folder of [exercises](../README.md#exercises):
#
# ```sh
# collectives practice median_in_parts
# collectives practice gather_from_sends
# ```

# %% [markdown]
# ## Read on
#
# - R. Thakur, R. Rabenseifner and W. Gropp, *Optimization of Collective Communication Operations in
#   MPICH* (2005): the algorithms behind these calls, and when each of them is the best.
# - gloo's own [gather.cc](https://github.com/pytorch/gloo/blob/main/gloo/gather.cc): about sixty
#   lines of C++; every rank sends straight to the root.
#
# In PyTorch's documentation:
#
# - [`gather`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.gather)
# - [`gather_object`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.gather_object)
#
# Next lesson: [scatter](../notebooks/scatter.ipynb), the way back: the root has everything, and
# gives each rank its share.
