# %% [markdown]
"""
# reduce

Every rank gives a tensor, and one rank, the root (`dst`), ends up with the sum (or maximum, ...) of all of them, in place.

A **rank** is one process of the job, and its number, from 0; the **world size**, n below, is how many there are. The **root** is
the one rank with a part of its own. A **group** is some of the ranks, for calls among themselves. The **backend** is the library
that moves the bytes: gloo (CPU), NCCL (GPU) or MPI.

You will see the sum on the last rank, one sum on each rank, what becomes of the tensors of the ranks that are not the root, and the
numbers of a log line, brought together on the rank that writes it.

    python lessons/reduce.py
    torchrun --nproc-per-node 4 lessons/reduce.py

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
# Four ranks. Rank r brings 1 and 2 times `10 ** r`, so that the digits of a sum name its ranks; the root is the last rank. On the
# others there is no result to look at.
#
# | rank | own | result |
# |---|---|---|
# | 0 | [1, 2] | - |
# | 1 | [10, 20] | - |
# | 2 | [100, 200] | - |
# | 3 | [1000, 2000] | [1111, 2222] |

# %% [markdown]
# ## The code
#
# `reduce` overwrites its argument, and not only on the root. So it gets a copy: `own` is still there afterwards.


# %%
def reduce(rank, world_size, device):
    own = torch.tensor([1, 2], device=device) * 10**rank
    result = own.clone()
    root = world_size - 1

    dist.reduce(result, dst=root, op=dist.ReduceOp.SUM)

    if rank == root:
        ones = (10**world_size - 1) // 9  # 1 + 10 + 100 + ... = 11...1
        check(result, torch.tensor([ones, 2 * ones]), "reduce(SUM)")
    check(own, torch.tensor([1, 2]) * 10**rank, "own tensor after reduce of a copy")
    return {"own": own, "result": result if rank == root else None}


# %%
if __name__ == "__main__":
    run(reduce)

# %% [markdown]
# ### Every root once
#
# Piece r of each rank's tensor is meant for rank r: n reductions, each to another root, each into a view of the tensor. `reduce`
# may leave anything in the tensors of ranks that are not the root.


# %%
def reduce_to_every_root(rank, world_size, device):
    pieces = torch.arange(1, world_size + 1, device=device) * 10**rank  # piece r is (r + 1) * 10 ** rank
    before = pieces.clone()

    for root in range(world_size):
        dist.reduce(pieces[root], dst=root)  # SUM is the default

    ones = (10**world_size - 1) // 9
    check(pieces[rank], torch.tensor((rank + 1) * ones), "reduce(SUM) to every root")
    return {"pieces": before, "sum of piece r": pieces[rank]}


# %% [markdown]
# **Predict first.** Rank 3 is the root last. By then three reductions have been let loose on its tensor. Is the sum of its own
# piece still right?

# %%
if __name__ == "__main__":
    run(reduce_to_every_root)

# %% [markdown]
# **Why.** Each reduction touches only the piece that it was given, and no earlier one was given piece 3. Of the *other* pieces
# nothing can be said afterwards. Together the n reductions do what a single `reduce_scatter` does.

# %% [markdown]
# ### What becomes of the others' tensors
#
# On ranks that are not the root the tensor is *undefined* afterwards: the backend may have used it for its own steps. So keep your
# own numbers, and fill the tensor that you give away anew each time. Here four ranks bring 1, 2, 3, 4, and in three rounds the sum
# goes to rank 0.


# %%
def undefined_elsewhere(rank, world_size, device):
    own = torch.tensor([rank + 1], device=device)
    scratch = torch.empty_like(own)  # one tensor for all rounds: nothing is allocated in the loop
    root = 0
    sums = []
    for _ in range(3):
        scratch.copy_(own)  # subtle: without this line the second round starts from what the first one left
        dist.reduce(scratch, dst=root)
        if rank == root:
            sums.append(scratch.item())

    total = world_size * (world_size + 1) // 2
    check(own, torch.tensor([rank + 1]), "own tensor after reduce of a copy")
    check(sums, [total] * 3 if rank == root else [], "reduce(SUM), three rounds")
    return {"own": own, "sums": sums if rank == root else None, "scratch": "the sum" if rank == root else "undefined"}


# %% [markdown]
# **Predict first.** One tensor, `scratch`, serves all three rounds. Which three sums does rank 0 get? And which would it get if
# `scratch` were filled only once, before the first round?

# %%
if __name__ == "__main__":
    run(undefined_elsewhere)

# %% [markdown]
# **Why.** Filled anew, every round gives 10. The second question is the second change at the end of this lesson: on gloo the ranks
# are left with partial sums, 10, 9, 7, 4, and the next round adds these. With rank 1 as root, rank 0 would hold the full 10 as
# well, so that a program which reads the wrong rank may look right. Another backend may leave something else.

# %% [markdown]
# ### A log line
#
# Rank 0 writes the mean loss, the highest loss and the fewest examples that any rank had. Sum what can be summed, in one call, and
# divide on the root: the mean of the ranks' own means would be wrong, as they hold unequal counts. Each tensor is built for its
# call, so nothing is lost when the other ranks' copies become undefined.


# %%
def log_line(rank, world_size, device):
    losses = torch.arange(1, rank + 2, dtype=torch.float64, device=device)  # rank r has r + 1 examples: 1, 2, ..., r + 1
    count = torch.tensor(float(len(losses)), dtype=torch.float64, device=device)
    sums = torch.stack([losses.sum(), count])
    highest, fewest = losses.max(), count
    writer = 0

    dist.reduce(sums, dst=writer, op=dist.ReduceOp.SUM)
    dist.reduce(highest, dst=writer, op=dist.ReduceOp.MAX)
    dist.reduce(fewest, dst=writer, op=dist.ReduceOp.MIN)

    check(losses, torch.arange(1, rank + 2, dtype=torch.float64), "losses after reduce")
    if rank != writer:
        return {"losses": losses}
    n = world_size
    check(sums, torch.tensor([n * (n + 1) * (n + 2) // 6, n * (n + 1) // 2], dtype=torch.float64), "reduce(SUM)")
    check(highest, torch.tensor(n, dtype=torch.float64), "reduce(MAX)")
    check(fewest, torch.tensor(1, dtype=torch.float64), "reduce(MIN)")
    return {"losses": losses, "mean": sums[0] / sums[1], "highest": highest, "fewest": fewest}


# %%
if __name__ == "__main__":
    run(log_line)

# %%
STEPS = [reduce, reduce_to_every_root, undefined_elsewhere, log_line]

# %% [markdown]
# ## The proof
#
# The root compares every element: 1 + 10 + 100 + ... has one digit for each rank, so that a rank left out or counted twice shows.
# The other ranks prove that what they kept is unchanged; the tensor that they gave away is not looked at, as nothing is promised.
# Every rank is the root once.

# %% [markdown]
# ## The cost
#
# For S bytes on n ranks, as a chain: n - 1 steps; every rank but the root sends S bytes, adding its own to what arrives. Cut into
# small pieces, the tensor flows through all links at once. As a tree: about log2(n) steps, better for small messages. In memory:
# the tensor itself, and a copy of it where a rank wants to keep its numbers.
#
# In `all_reduce` a rank sends 2 (n - 1) / n * S bytes, with many ranks almost twice as much. Where only one reads the sum,
# `reduce` is enough; where all read it, use `all_reduce`, not `reduce` and then `broadcast`.
#
# Bus-bandwidth factor: `1`. (Algorithm bandwidth is S / time; every rank but the root must send every byte once, so it is already
# what the links can do.)

# %% [markdown]
# ## Pitfalls
#
# - Only the root may read the result. Elsewhere the tensor holds anything: its old numbers, a partial sum, even the right answer.
# - To reduce the same tensor again, fill it again. On gloo, four ranks with 1, 2, 3, 4 and root 0: renew only the root's part, and
#   the second sum is 1 + 9 + 7 + 4 = 21 instead of 10.
# - Every rank must name the same root and the same reduction. On gloo neither is compared: with two roots some rank waits until the
#   time limit, and with two reductions the answer may be wrong in silence.
# - AVG has no meaning for integers, and a backend may lack it: SUM and divide on the root, as the log line does.
# - `dst` has no default; it is a global rank, also with `group=`. `group_dst` counts within the group.

# %% [markdown]
# ## Where it is used
#
# Statistics for a log or a progress bar, which rank 0 alone writes. FairScale's ShardedDDP, an early ZeRO, reduces each gradient to
# the one rank that owns that part of the optimizer's state. In training most sums are needed everywhere, so `all_reduce` and
# `reduce_scatter` are seen far more often.

# %% [markdown]
# ## Change and try
#
# Each of these is one change in one cell: make it, run that cell and the one after it, and undo it.
#
# 1. In `reduce`, change `if rank == root:` to `if rank >= 0:`. Now every rank claims to have the sum. Who has it? It says
#    `should be [1111, 2222]`; read the digits of what it got: those are the ranks that were in a partial sum.
# 2. In `undefined_elsewhere`, change `torch.empty_like(own)` to `own.clone()` and `scratch.copy_(own)` to `pass`. It says
#    `got [10, 30, 65], should be [10, 10, 10]` on gloo: the second sum is 10 + 9 + 7 + 4.
# 3. In `log_line`, change `dist.reduce(sums, dst=writer, op=dist.ReduceOp.SUM)` to
#    `dist.reduce(sums, dst=writer, op=dist.ReduceOp.AVG)`. Would the mean in the log be another? No: both sums are divided by n,
#    and the quotient stays. The proof looks at the sums themselves. It says `got [5.0, 2.5], should be [20.0, 10.0]`.

# %% [markdown]
# ## Read on
#
# In PyTorch's documentation:
#
# - [`reduce`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.reduce)
# - [`ReduceOp`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.ReduceOp)
#
# Next lesson: [all_gather](../notebooks/all_gather.ipynb), which keeps the tensors of all ranks apart.
