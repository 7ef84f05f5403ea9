# %% [markdown]
"""
# redistribute: DTensor, Shard, Replicate and Partial

A DTensor knows how its ranks share one tensor, and each change of that is a call of this course.

You have wrapped your model in `fully_shard`, and one line of it has become slow. It only multiplies
two tensors, and it names no rank, no group and no call. But its tensors are DTensors, and they
communicate whenever an operation needs numbers that are on another rank. In this lesson you read
what a DTensor says about its parts, find out which call each change of it makes and what that
costs, and see which operations communicate although nobody asked them to.

    python lessons/model_parallel/redistribute.py
    torchrun --nproc-per-node 4 lessons/model_parallel/redistribute.py
"""

# %%
from collectives import check, counting, needs, run
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.nn.functional import gelu

from slices import Slice, Slices

# %% [markdown]
# ## The idea
#
# In [fully_sharded](../../notebooks/model_parallel/fully_sharded.ipynb) each parameter became a
# [DTensor](../../docs/glossary.md#dtensor): one tensor to you, of which each rank holds a local
# part. How the parts make up the whole is its [placement](../../docs/glossary.md#placement):
#
# | placement | printed | a rank holds |
# |---|---|---|
# | `Shard(0)` | S(0) | some of the rows |
# | `Shard(1)` | S(1) | some of the columns |
# | `Replicate()` | R | all of it |
# | `Partial()` | P(sum) | a tensor of the same shape: the sum over all ranks is the whole |
#
# On a [mesh](../../docs/glossary.md#mesh) with several dimensions, a DTensor has a placement for
# each of them. Here the mesh has one dimension, so there is one placement.

# %% [markdown]
# ## Who holds what
#
# `distribute_tensor` makes a DTensor from a tensor that rank 0 has: with `Shard` it scatters rank
# 0's tensor, and with `Replicate` it broadcasts it. The others give a tensor, too, but only its
# shape counts. Below, each rank adds its number to the matrix, so that you see whose numbers
# arrive.

# %% [markdown]
# **Predict first.** Four ranks share a matrix with nine rows by `Shard(0)`, and `torch.chunk`
# decides who gets which. How many rows does rank 3 hold?


# %%
def matrix(rows, columns, device):
    numbers = torch.arange(rows * columns, dtype=torch.float64, device=device)
    return numbers.view(rows, columns)


def share(length, rank, n):
    """The indices that torch.chunk gives to a rank: as many as the others, rounded up, or fewer."""
    size = -(-length // n)
    return range(length)[rank * size : (rank + 1) * size]


@needs(ranks=2)
def placements(rank, world_size, device):
    n = world_size
    mesh = init_device_mesh(device.type, (n,))
    whole, found, slices = matrix(2 * n + 1, 3 * n, device), {}, {}
    calls = {Shard(0): "scatter", Shard(1): "scatter", Replicate(): "broadcast"}
    for placement, call in calls.items():
        with counting() as counts:
            one = distribute_tensor(whole + rank, mesh, [placement])
        check(list(counts), [f"c10d.{call}"], f"calls of distribute_tensor, {placement}")
        mine = one.to_local()
        rows, columns = map(range, whole.shape)
        if placement == Shard(0):
            rows = share(2 * n + 1, rank, n)
        elif placement == Shard(1):
            columns = share(3 * n, rank, n)
        check(mine, whole[rows.start : rows.stop, columns.start : columns.stop], f"{placement}")
        check(one.full_tensor(), whole, f"all of it, {placement}")
        found[f"{placement}"] = list(mine.shape)
        if placement != Replicate():
            first = rows.start, columns.start
            slices[f"{placement}"] = Slice(first, tuple(mine.shape), tuple(whole.shape))
    return found | {"parts": Slices(slices, ("row", "column"))}


# %%
if __name__ == "__main__":
    run(placements, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# None. `torch.chunk` rounds 9 / 4 up to 3, so the first three ranks have three rows each, and
# nothing is left for rank 3. Its local part is a tensor with 0 rows.
#
# </details>

# %% [markdown]
# ## One change, one call
#
# Two operations rarely need the same placement, so a DTensor must change it, and `redistribute`
# does that. Which call does it take? You can find out without reading torch, because you have
# written each of these changes yourself: below, `by_hand` lists a function for each of them, with
# one call of `dist`. The step makes each change by hand and by `redistribute`, and compares
# results, calls and bytes.

# %% [markdown]
# **Predict first.** Which of the five changes sends nothing? And which one can be made in a smaller
# call than `all_gather_single`, although every rank gets numbers from all others?


# %%
def keep(mine):
    return mine.chunk(dist.get_world_size())[dist.get_rank()]


def gather(mine):
    whole = mine.new_empty(dist.get_world_size() * len(mine), *mine.shape[1:])
    dist.all_gather_single(whole, mine)
    return whole


def add_up(mine):
    total = mine.clone()
    dist.all_reduce(total)
    return total


def add_up_rows(mine):
    rows = torch.empty_like(keep(mine))
    dist.reduce_scatter_single(rows, mine)
    return rows


def exchange(mine):
    columns = torch.stack(mine.chunk(dist.get_world_size(), dim=1))  # of my rows, for each rank
    arrived = torch.empty_like(columns)
    dist.all_to_all_single(arrived, columns)
    return arrived.flatten(0, 1)


def by_hand():
    return [
        (Replicate(), Shard(0), keep),
        (Shard(0), Replicate(), gather),
        (Partial(), Replicate(), add_up),
        (Partial(), Shard(0), add_up_rows),
        (Shard(0), Shard(1), exchange),
    ]


def parts_of(whole, n):
    """What each rank holds of this matrix, by placement."""
    addends = [whole * (other + 1) for other in range(n)]
    return {
        Shard(0): whole.chunk(n),
        Shard(1): whole.chunk(n, dim=1),
        Replicate(): [whole] * n,
        Partial(): addends,
    }


def counted(counts):
    """Names of the calls, without where they were seen, and bytes."""
    return [(name.partition(".")[2], one.bytes) for name, one in counts.items()]


@needs(ranks=2)
def changes(rank, world_size, device):
    n, found = world_size, {}
    mesh = init_device_mesh(device.type, (n,))
    whole = matrix(2 * n, 4 * n, device)
    for source, target, function in by_hand():
        what = f"{source} to {target}"
        # The addends 1, 2, ... n times the matrix add up to n * (n + 1) / 2 times the matrix.
        right = whole * (n * (n + 1) // 2) if source == Partial() else whole
        mine = parts_of(whole, n)[source][rank]
        with counting() as ours:
            result = function(mine)
        with counting() as theirs:
            moved = DTensor.from_local(mine, mesh, [source]).redistribute(placements=[target])
        expected = parts_of(right, n)[target][rank]
        check(result, expected, f"{what}, by hand")
        check(moved.to_local(), expected, f"{what}, by redistribute")
        if function is exchange and device.type == "cpu":
            # It gathers everything, n times as much, and drops what it does not need.
            calls = [("all_gather_single", n * ours.total().bytes)]
            check(counted(theirs), calls, f"call and bytes of redistribute, {what}")
        else:
            check(counted(ours), counted(theirs), f"call and bytes, {what}")
        found[what] = " ".join(f"{name} {size}" for name, size in counted(theirs)) or "nothing"
    found["by hand"] = f"all_to_all_single {ours.total().bytes}"
    rows = Slice((2 * rank, 0), (2, 4 * n), (2 * n, 4 * n))
    slices = {"rows": rows, "columns": Slice((0, 4 * rank), (2 * n, 4), (2 * n, 4 * n))}
    return found | {"exchanged": Slices(slices, ("row", "column"), "all_to_all_single")}


# %%
if __name__ == "__main__":
    run(changes, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# The change from copies to rows sends nothing, because a rank has its rows already. The change from
# rows to columns can be made by one `all_to_all_single`, of 256 bytes on four ranks, because a rank
# needs only its own columns of the rows of all others.
#
# But on gloo, `redistribute` gathers the whole matrix for it, 1024 bytes, and warns once: "CPU
# process group does not support alltoall yet, falling back with allgather + chunk!" The warning is
# out of date, because your own function has just made that call on the same ranks.
#
# </details>

# %% [markdown]
# ## Which operations communicate?
#
# Nobody has to write `redistribute`. Each operation on DTensors knows which placements of its
# inputs it can compute with, and what the result then is. If the inputs fit, nothing is sent. If
# they do not fit, the operation changes them first.
#
# The step computes `gelu(x @ a) @ b`, as the two linear layers of a transformer block do, with
# columns of `a` and rows of `b` on each rank. It counts the calls of each operation. So does
# torch's `CommDebugMode`, which you can put around a line of your own program.

# %% [markdown]
# **Predict first.** All ranks have `x`. Which of these operations makes a call: `x @ a`, `gelu` of
# it, the product with `b`, the sum with `x`, or the last `gelu`?


# %%
@needs(ranks=2)
def products(rank, world_size, device):
    mesh = init_device_mesh(device.type, (world_size,))
    width = 4 * world_size
    a, b = matrix(width, width, device).cos(), matrix(width, width, device).sin()
    x = matrix(4, width, device).sin()
    right = gelu(gelu(x @ a) @ b + x)
    x = distribute_tensor(x, mesh, [Replicate()])
    a = distribute_tensor(a, mesh, [Shard(1)])
    b = distribute_tensor(b, mesh, [Shard(0)])
    found = {}

    def counted_as(name, function, placement, calls):
        with counting() as counts, CommDebugMode() as debug:
            result = function()
        check([name for name, _ in counted(counts)], calls, f"calls, {name}")
        check(debug.get_total_counts(), len(calls), f"CommDebugMode, {name}")
        check(result.placements, (placement,), f"placement, {name}")
        found[name] = f"{placement} {' '.join(calls)}".strip()
        return result

    y = counted_as("x @ a", lambda: x @ a, Shard(1), [])
    y = counted_as("gelu", lambda: gelu(y), Shard(1), [])
    y = counted_as("@ b", lambda: y @ b, Partial(), [])
    y = counted_as("+ x", lambda: y + x, Partial(), [])
    y = counted_as("last gelu", lambda: gelu(y), Replicate(), ["all_reduce"])
    check(y.to_local(), right, "gelu(gelu(x @ a) @ b + x)", rtol=1e-9)
    return found


# %%
if __name__ == "__main__":
    run(products, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Only the last `gelu`. Both products fit: columns of `a` give columns of the result, which are the
# rows that `b` needs. The product with `b` is an addend on each rank, and adding `x` keeps it one.
# But gelu of a sum is not the sum of gelus, so the last `gelu` must know the sum first, and calls
# `all_reduce`.
#
# So the call is not in the line that made the addends. If a line is slow, look for a `Partial()`
# above it.
#
# </details>

# %%
STEPS = [placements, changes, products]

# %% [markdown]
# ## The proof
#
# Local parts equal closed forms, or parts of the product of one process. Calls and bytes are
# counted below `redistribute`, by torch's dispatcher, and compared with those of your own call.

# %% [markdown]
# ## Make it wrong
#
# Make one change, run the steps, read what the proof says, and undo it.
#
# 1. **Rounded down.** In `share`, change `-(-length // n)` to `length // n`. It says `[S(0)`:
#    torch gives more rows to the first ranks.
# 2. **An addend taken for the whole.** In `changes`, change `DTensor.from_local(mine, mesh,
#    [source])` to `DTensor.from_local(mine, mesh, [Replicate() if source == Partial() else
#    source])`. It says `[P(sum) to R, by redistribute`: `from_local` believes what you say.
# 3. **By way of all of it.** In `changes`, change `.redistribute(placements=[target])` to
#    `.redistribute(placements=[Replicate()]).redistribute(placements=[target])`. It says
#    `[call and bytes, P(sum) to S(0)`. The results are right.
# 4. **Rows in place of columns.** In `products`, change `distribute_tensor(a, mesh, [Shard(1)])` to
#    `distribute_tensor(a, mesh, [Shard(0)])`. It says `[placement, x @ a`. The result is right.

# %% [markdown]
# ## Pitfalls
#
# - `distribute_tensor` writes into the tensor that you give it: with `Replicate()` every rank's
#   tensor then has the numbers of rank 0. Give it a copy if you need your own numbers.
# - `print(x)` of a DTensor shows the local part, and `x.mean()` may be `Partial()`. Call
#   `full_tensor()` for the number, on all ranks, because it communicates.
# - `if rank == 0: x.sum().full_tensor()` hangs as any call does that one rank makes alone.

# %% [markdown]
# ## On GPUs
#
# - There the change from rows to columns is one all-to-all. Only on a mesh of the type "cpu" does
#   it gather everything (`torch/distributed/tensor/_collective_utils.py`: "CPU process group does
#   not support alltoall yet").

# %% [markdown]
# ## Read on
#
# In PyTorch's documentation:
# [`redistribute`](https://docs.pytorch.org/docs/stable/distributed.tensor.html).
#
# You have just computed the two products of a tensor parallel block. Next lesson:
# [tensor_parallel](../../notebooks/model_parallel/tensor_parallel.ipynb), which trains with them.
