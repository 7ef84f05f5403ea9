# %% [markdown]
"""
# broadcast

Sometimes one rank decides for all: it has the first weights, the seed, or the order to stop.
`broadcast` copies the tensor of one rank, the root, into the tensors of all other ranks.

You will see one broadcast; a tensor whose length only the root knows; a table to which every rank
adds a row; two numbers of two ranks, shared in one call; and the weight update of reinforcement
learning, in buckets and in a group of its own.

    python lessons/broadcast.py
    torchrun --nproc-per-node 4 lessons/broadcast.py
"""

# %%
from collectives import check
from collectives.lesson import run
import torch
import torch.distributed as dist

# %% [markdown]
# ## The call
#
# `broadcast` works in place. Every rank runs the same line: the root's `x` is read, and every other
# `x` is overwritten. `src` names the root, and it must be the same on all ranks.


# %%
def broadcast(rank, world_size, device):
    x = torch.tensor([1, 2, 3], device=device) * 10**rank
    before = x.clone()
    root = world_size - 1
    dist.broadcast(x, src=root)
    # proof: the root keeps what it had
    check(x, torch.tensor([1, 2, 3]) * 10**root, "broadcast")
    return {"before": before, "after": x}


# %%
if __name__ == "__main__":
    run(broadcast)

# %% [markdown]
# Four ranks print this:
#
# | rank | before | after |
# |---|---|---|
# | 0 | [1, 2, 3] | [1000, 2000, 3000] |
# | 1 | [10, 20, 30] | [1000, 2000, 3000] |
# | 2 | [100, 200, 300] | [1000, 2000, 3000] |
# | 3 | [1000, 2000, 3000] | [1000, 2000, 3000] |
#
# Count the zeros: rank 0 starts with none, and rank 3, the root, with three. Afterwards all numbers
# have three. In the picture each colour is a rank: on the right, only the root's colour is left.

# %% [markdown]
# ### A length that only the root knows
#
# A receiver brings a tensor of the right length and dtype; what is in it does not matter. The call
# cannot tell a receiver how long the root's tensor is. So where the receivers cannot know,
# broadcast the length first, as one number.


# %%
def broadcast_length_first(rank, world_size, device):
    length = torch.tensor([1], device=device)  # any number
    if rank == 0:
        samples = torch.arange(5, 10, device=device)
        length[0] = len(samples)
    dist.broadcast(length, src=0)
    if rank != 0:
        samples = torch.full((length.item(),), -1, device=device)  # usually torch.empty
    dist.broadcast(samples, src=0)
    # proof
    check([length, samples], [torch.tensor([5]), torch.arange(5, 10)], "broadcast, length first")
    return {"length": length, "samples": samples}


# %%
if __name__ == "__main__":
    run(broadcast_length_first)

# %% [markdown]
# ### Every rank is the root once
#
# Each rank fills one row of its table: rank r fills row r. All other rows are -1. Then each rank in
# turn broadcasts its row.


# %%
def broadcast_every_root(rank, world_size, device):
    table = torch.full((world_size, 2), -1, device=device)
    table[rank] = torch.tensor([1, 2]) * 10**rank
    own = table[rank].clone()
    for root in range(world_size):
        dist.broadcast(table[root], src=root)
    # proof
    rows = [torch.tensor([1, 2]) * 10**r for r in range(world_size)]
    check(table, torch.stack(rows), "broadcast from every root")
    return {"own row": own, "table": table}


# %% [markdown]
# **Predict first.** `table[root]` makes a new tensor object. Does the table itself change? Write
# down the second row of rank 0's table.

# %%
if __name__ == "__main__":
    run(broadcast_every_root)

# %% [markdown]
# <details><summary>Answer</summary>
#
# It is [10, 20]. `table[root]` is a view: it has no memory of its own, so what arrives is written
# into the table. (The picture shows three of the four calls; the last one does the same for row 3.)
# The tensors of a model's `state_dict()` are such views, too. Broadcast into them,
# and the model has changed; you need no `load_state_dict`. This is how [training on several
# ranks](../notebooks/training/data_parallel.ipynb) begins:
#
# ```python
# for tensor in model.state_dict().values():
#     dist.broadcast(tensor, src=0)  # every rank starts with the model of rank 0
# ```
#
# After n broadcasts every rank has every row. There is one call for that: `all_gather`, the next
# lesson.
#
# </details>

# %% [markdown]
# ### Two half-sums in one call
#
# Rank 0 has added up 1 to 4, and the last rank has added up 5 to 8. All ranks want both sums. Two
# broadcasts would do, but one `all_reduce` can do it as well. Every rank puts -1, for "not known",
# where it has no sum. -1 is less than either sum, so MAX picks the sums. The step also tries SUM.


# %%
def half_sums(rank, world_size, device):
    known = torch.full((2,), -1, device=device)
    if rank == 0:
        known[0] = 1 + 2 + 3 + 4
    if rank == world_size - 1:
        known[1] = 5 + 6 + 7 + 8
    by_max, by_sum = known.clone(), known.clone()
    dist.all_reduce(by_max, op=dist.ReduceOp.MAX)
    dist.all_reduce(by_sum, op=dist.ReduceOp.SUM)
    # proof: of n ranks, n - 1 do not know a sum
    check(by_max, torch.tensor([10, 26]), "two half-sums by all_reduce(MAX)")
    check(by_sum, torch.tensor([10, 26]) - (world_size - 1), "two half-sums by all_reduce(SUM)")
    return {"known": known, "MAX": by_max, "SUM": by_sum}


# %% [markdown]
# **Predict first.** The half-sums are 10 and 26. Which two numbers does rank 1 get with MAX, and
# which two with SUM? Write down all four.

# %%
if __name__ == "__main__":
    run(half_sums)

# %% [markdown]
# <details><summary>Answer</summary>
#
# MAX gives 10 and 26. SUM gives 7 and 23: for each sum there are three ranks that do not know it,
# and each of them adds its -1. Nothing fails, and 7 and 23 look like sums. In the picture a number
# made by MAX has the colour of one rank, and a number made by SUM has all four colours.
#
# An `all_reduce` is a broadcast if the ranks that have nothing to say bring a value that cannot
# change the result. For SUM that is 0. For MAX it is a value below all others, and -1 is below all
# others only by luck: with a half-sum of -5, MAX would hand out -1.
#
# </details>

# %% [markdown]
# ### New weights for the engines
#
# When a language model is trained by reinforcement learning, ranks have different roles. A trainer
# improves the weights. Engines generate text with copies of them, which go stale. A reference model
# keeps the old weights, to measure how far the trainer has moved. So the new weights must reach the
# engines, and must not reach the reference.
#
# The trainer and its engines therefore form a group, and `group=` limits the broadcast to it. Every
# rank calls `dist.new_group` with the list of members, rank 0 too: making a group is itself a call
# of all ranks. That call has [its own lesson](../notebooks/new_group.ipynb) later.
#
# Each call costs time, however little it carries, and a model has hundreds of small tensors. So
# several tensors are packed end to end into one flat tensor, a bucket, and each bucket takes one
# broadcast. The model here has three heads. Each is a `Linear(2, 1)`, with a weight of two numbers
# and a bias of one. A bucket holds at most five numbers.


# %%
def packed(tensors, limit):
    """The tensors in their order, in lists that hold at most `limit` numbers together."""
    bucket = []
    for tensor in tensors:
        if bucket and sum(map(torch.numel, bucket)) + tensor.numel() > limit:
            yield bucket
            bucket = []
        bucket.append(tensor)
    yield bucket


def broadcast_weights(rank, world_size, device):
    members = list(range(1, world_size)) or [0]  # rank 0 is the reference, unless it is alone
    trainer = members[-1]
    group = dist.new_group(members)

    heads = torch.nn.ModuleList(torch.nn.Linear(2, 1, device=device) for _ in range(3))
    weights = torch.full((9,), -1.0, device=device)  # the old ones
    if rank == trainer:
        weights = torch.tensor([2.0, 3, 5, 2, 3, 105, 2, 3, 205], device=device)
    torch.nn.utils.vector_to_parameters(weights, heads.parameters())
    question = torch.tensor([1.0, 10.0], device=device)
    before = torch.cat([head(question) for head in heads])

    calls = 0
    if rank in members:
        for bucket in packed(heads.state_dict().values(), limit=5):
            flat = torch.cat([tensor.flatten() for tensor in bucket])
            dist.broadcast(flat, src=trainer, group=group)
            calls += 1
            for tensor, part in zip(bucket, flat.split([t.numel() for t in bucket]), strict=True):
                tensor.copy_(part.view_as(tensor))
    after = torch.cat([head(question) for head in heads])
    # proof: 1 * 2 + 10 * 3 + 5 = 37, and -1 - 10 - 1 = -12
    new, old = torch.tensor([37.0, 137.0, 237.0]), torch.full((3,), -12.0)
    check(after, new if rank in members else old, "the answers after broadcast(group=...)")
    roles = dict.fromkeys(members, "engine") | {trainer: "trainer"}
    role = roles.get(rank, "reference")
    return {"role": role, "before": before, "after": after, "broadcasts": calls}


# %% [markdown]
# **Predict first.** With the old weights, all of them -1, a head answers the question [1, 10] with
# -12. The first head of the trainer answers 37. What does the first head answer on each of the four
# ranks after the update? And how many broadcasts carry the six tensors? Write down five numbers.

# %%
if __name__ == "__main__":
    run(broadcast_weights)

# %% [markdown]
# <details><summary>Answer</summary>
#
# -12, 37, 37, 37, and two broadcasts. The first bucket holds a weight, a bias and a weight, which
# are five numbers; the second holds the other four. Rank 0 is not in the group, so it takes no
# part, and its answers stay as they were. In the picture its line has only the tick of `new_group`.
#
# Both sides have to pack alike. They do, because `state_dict()` lists the tensors in the order of
# the layers, on every rank.
#
# </details>

# %%
STEPS = [
    broadcast,
    broadcast_length_first,
    broadcast_every_root,
    half_sums,
    broadcast_weights,
]

# %% [markdown]
# ## The cost
#
# S is the size of the tensor in bytes. A chain takes n - 1 steps: the root sends to the next rank,
# and every rank but the last passes on what it got. If the tensor is cut into many small pieces,
# all links work at the same time, and the whole takes little longer than one link needs for S
# bytes. A tree takes about log2(n) steps, which is better for small tensors. In memory, the call
# needs nothing beyond the tensor and the buffers of the backend; a bucket is a copy.
#
# Bus-bandwidth factor: `1`. Every byte has to enter each rank except the root once, so the
# algorithm bandwidth S / time already compares with the bandwidth of the links.

# %% [markdown]
# ## Pitfalls
#
# - Every rank must name the same root. If they do not, gloo reports no error: [some ranks go on,
#   and others wait](../notebooks/mistakes/arguments.ipynb) until the time limit.
# - Every rank must bring the same length. gloo does send the length along, but `broadcast` does not
#   return it. If the root sends less than a receiver expects, [the last elements keep their old
#   values](../notebooks/mistakes/buffers.ipynb). If it sends more, gloo [ends the receiver's
#   process](../notebooks/mistakes/buffers.ipynb).
# - With integers in `x`, `dist.broadcast(x.float(), src=0)` fills a copy that nobody keeps, and `x`
#   stays as it was.
# - `src` is the rank in the whole job, also with `group=`. The rank within the group is
#   `group_src`. [Many programs confuse the two](../notebooks/mistakes/groups.ipynb).
# - A broadcast is [no barrier](../notebooks/hearsay.ipynb): the root may go on before the others
#   have come.
# - `parameters()` leaves out the buffers of a model, such as the running mean of a BatchNorm.
#   `state_dict()` has them. Some of them are integers: give each dtype its own buckets.
# - A column `x[:, 0]` has gaps in memory. gloo treats it as if it had none, and [overwrites its
#   neighbours](../notebooks/mistakes/buffers.ipynb). NCCL wants contiguous tensors (documented).

# %% [markdown]
# ## Where it is used
#
# DDP broadcasts the parameters and buffers of rank 0 when it is built, so that all ranks start
# alike. ZeroRedundancyOptimizer lets each rank update a part of the parameters, and then broadcast
# it. Loaders broadcast a checkpoint that only rank 0 has read.

# %% [markdown]
# ## Change and try
#
# Each of these is one change in one cell. Make it, run that cell and the one after it, and undo it.
#
# 1. In `broadcast_length_first`, change `length.item(),` to `length.item() + 2,`. The root sends 5
#    numbers, and the others have room for 7. Is that an error, or does it wait?
#
#    <details><summary>Answer</summary>
#
#    You get `[5, 6, 7, 8, 9, -1, -1]`. On gloo it is neither: the last two elements keep their old
#    values, and only the proof notices.
#
#    </details>
#
# 2. In `broadcast_every_root`, change `dist.broadcast(table[root], src=root)` to
#    `dist.broadcast(table[root].clone(), src=root)`. The shapes are the same, and the ranks
#    exchange the same numbers. Where do these end up?
#
#    <details><summary>Answer</summary>
#
#    You get `should be [[1, 2], [10, 20], [100, 200], [1000, 2000]]`. Each rank has only its own
#    row: the other rows arrive in copies, and the copies are dropped.
#
#    </details>
#
# 3. In `broadcast_weights`, change `limit=5` to `limit=1`. A weight has two numbers, so it does not
#    fit. How many broadcasts are there now?
#
#    <details><summary>Answer</summary>
#
#    You get `[37.0, 137.0, 237.0] 6`. Every tensor gets a bucket of its own, even one that is
#    larger than the limit.
#
#    </details>

# %% [markdown]
# ## Write it yourself
#
# Write `my_broadcast(x, src)`, which does what `dist.broadcast` does, in place. The only call that
# it may make is `all_reduce`.
#
# <details><summary>One way to write it</summary>
#
# ```python
# def my_broadcast(x, src):
#     if dist.get_rank() != src:
#         x.zero_()
#     dist.all_reduce(x, op=dist.ReduceOp.SUM)
#
#
# def try_my_broadcast(rank, world_size, device):
#     for root in range(world_size):
#         x = torch.tensor([1, 2, 3], device=device) * 10**rank
#         my_broadcast(x, src=root)
#         check(x, torch.tensor([1, 2, 3]) * 10**root, "my_broadcast")
#     return {"from the last": x}
# ```
#
# </details>

# %% [markdown]
# ## Read on
#
# - R. Thakur, R. Rabenseifner and W. Gropp, *Optimization of Collective Communication Operations in
#   MPICH* (2005): when a tree is best, and what is better for large tensors.
# - L. Ouyang and others, [*Training language models to follow instructions with human
#   feedback*](https://arxiv.org/abs/2203.02155) (2022): why a reference model stays as it was.
# - J. Hu and others, [*OpenRLHF*](https://arxiv.org/abs/2405.11143) (2024): a trainer and its
#   engines, in a framework.
#
# In PyTorch's documentation:
#
# - [`broadcast`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.broadcast)
# - [`all_reduce`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_reduce)
# - [`ReduceOp`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.ReduceOp)
# - [`new_group`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.new_group)
# - [`get_rank`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.get_rank)
#
# Next lesson: [all_gather](../notebooks/all_gather.ipynb), n broadcasts in one call.
