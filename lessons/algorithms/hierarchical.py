# %% [markdown]
"""
# hierarchical

Ranks on one machine are close to each other. An `all_reduce` first inside each machine, then
between the machines, sends less over the network; and on one machine no message is needed at all.

You will see three calls that make an `all_reduce`, what leaves a machine with and without them, and
an `all_reduce` in memory that all ranks share.

    python lessons/algorithms/hierarchical.py
    torchrun --nproc-per-node 4 lessons/algorithms/hierarchical.py
"""

# %%
import os
import tempfile
from collectives import check
from collectives.backends.algorithms import count
from collectives.bench import algorithm_times
from collectives.lesson import Played, Times, run
from collectives.pictures import crossings
import torch
import torch.distributed as dist

# %% [markdown]
# ## The idea
#
# The algorithms before treat all ranks alike. In a cluster they are not: inside a machine, ranks
# talk over memory or NVLink (documented), and between machines over a network that all ranks of the
# machine share. So one rank of each machine, the leader, is the only one that uses the network.

# %% [markdown]
# ## The code
#
# ### Inside, between, inside
#
# Here a machine has two ranks, and the even ones are the leaders. Each rank is in the group of its
# machine, the leaders in one more. Every rank must create all groups, in the same order. Then three
# calls make an `all_reduce`: a reduce inside each machine, an `all_reduce` between the leaders, and
# a broadcast inside each machine.


# %%
def numbers(rank, length, device):
    return torch.arange(1, length + 1, device=device) * 10**rank


def groups(rank, n):
    """The group of my machine, and that of the leaders."""
    machines = [list(range(n))[first : first + 2] for first in range(0, n, 2)]
    inside = [dist.new_group(ranks) for ranks in machines]
    return inside[rank // 2], dist.new_group(list(range(0, n, 2)))


def hierarchical(rank, world_size, device):
    x, leader = numbers(rank, 4, device), rank // 2 * 2
    inside, leaders = groups(rank, world_size)
    dist.reduce(x, dst=leader, group=inside)
    if rank == leader:
        dist.all_reduce(x, group=leaders)
    dist.broadcast(x, src=leader, group=inside)

    check(x, numbers(0, 4, device) * int("1" * world_size), "all_reduce")
    memory = [[10**one, 2 * 10**one] for one in range(4)]
    return {"after": x, "schedule": Played("all_reduce", "hierarchical", memory, per_node=2)}


# %% [markdown]
# **Predict first.** With a ring between the two leaders, how many tensors leave each machine? Write
# the number down. (It is `2 (m - 1) / m` for m machines.)

# %%
if __name__ == "__main__":
    run(hierarchical)

# %% [markdown]
# <details><summary>Answer</summary>
#
# One: two messages with half of the tensor each. The picture is played from the schedule
# [`hierarchical.py`](../../collectives/backends/algorithms/hierarchical.py), for four ranks. Step 1
# is inside the machines, steps 2 and 3 are the ring of the leaders, step 4 is inside again.
#
# </details>

# %% [markdown]
# ### What leaves a machine
#
# Eight ranks on two machines. On a ring, each rank sends `2 * 7 / 8 = 1.75` tensors to its
# neighbour. If the ranks are placed in blocks, 0 to 3 on one machine and 4 to 7 on the other, one
# neighbour in four is on the other machine. If they are placed in turn, every neighbour is. The
# step counts from the schedules what leaves machine 0.


# %%
def between_machines(rank, world_size, device):
    found, size = {}, 2**20
    for name, algorithm, machine in (
        ("ring, in blocks", "ring", lambda one: one // 4),
        ("ring, in turn", "ring", lambda one: one % 2),
        ("hierarchical", "hierarchical", lambda one: one // 4),
    ):
        steps = count.sized_messages("all_reduce", algorithm, 8, size, per_node=4)
        messages = [message for step in steps for message in step]
        leaving = [
            nbytes for one, nbytes in messages if (machine(one.source), machine(one.to)) == (0, 1)
        ]
        found[name] = sum(leaving) / size

    check(list(found.values()), [1.75, 7.0, 1.0], "tensors that leave machine 0")
    return found


# %% [markdown]
# **Predict first.** How many tensors leave machine 0 if the ranks are placed in turn? Write the
# number down.

# %%
if __name__ == "__main__":
    run(between_machines)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 7: all four ranks of the machine send 1.75 tensors to the other machine. A launcher that numbers
# the ranks in blocks, as torchrun does, costs a quarter of that. The hierarchical one sends 1.
#
# </details>

# %% [markdown]
# ### Memory that all ranks share
#
# Ranks on one machine can map the same memory. Then nobody sends anything. Each rank writes its
# tensor into its row, reads one piece of all rows, and adds. It puts the sum into row 0, from which
# everybody copies. What takes the place of the messages is waiting: nobody may read before all have
# written. Here a barrier does that; it must be fast, for else all is lost.


# %%
def shared_memory(rank, world_size, device):
    x, length = numbers(rank, 4 * world_size, "cpu"), 4 * world_size
    name = [tempfile.mkstemp()[1] if rank == 0 else None]
    dist.broadcast_object_list(name, src=0)
    memory = torch.from_file(name[0], shared=True, size=world_size * length, dtype=x.dtype)
    rows, mine = memory.view(world_size, length), slice(4 * rank, 4 * rank + 4)

    rows[rank] = x
    dist.barrier()
    if rank == 0:
        os.remove(name[0])  # the memory itself goes when the last rank has gone
    rows[0, mine] = rows[:, mine].sum(0)
    dist.barrier()
    x.copy_(rows[0])

    check(x, numbers(0, length, "cpu") * int("1" * world_size), "all_reduce")
    return {"the first four": x[:4]}


# %%
if __name__ == "__main__":
    run(shared_memory)

# %% [markdown]
# A second `all_reduce` in the same memory would need another barrier: a fast rank must not write
# its next tensor while a slow one still copies. The backend `by_hand` takes three such memories in
# turn instead.

# %% [markdown]
# ### The measured curve
#
# On one machine the hierarchical algorithm is the binomial tree. What does it take to send nothing?
# These times were not measured now. They are those of the page
# [Algorithms](../../docs/algorithms.md): 4 ranks on an idle machine with two cores. `collectives
# bench algorithms` measures on yours.


# %%
def shared_memory_measured(rank, world_size, device):
    times = algorithm_times.measured("gloo", "binomial_tree", "shared_memory")
    check(crossings.fastest(times), [(4, "shared_memory")], "the fastest, by size")
    return {"times": Times(times, against="binomial_tree")}


# %%
if __name__ == "__main__":
    run(shared_memory_measured)

# %% [markdown]
# The numbers in the picture say how many times faster than the tree the shared memory of `by_hand`
# is.

# %%
STEPS = [hierarchical, between_machines, shared_memory, shared_memory_measured]

# %% [markdown]
# ## The count
#
# For m machines, each with k ranks, and a tensor of S bytes, what leaves a machine:
#
# | algorithm | bytes |
# |---|---|
# | ring, ranks in blocks | `2 (mk - 1) / mk * S`, nearly `2 S` |
# | ring, ranks in turn | k times that |
# | recursive doubling | `k S` in each step between machines |
# | hierarchical | `2 (m - 1) / m * S` |
#
# So a ring in blocks is nearly as good as the hierarchical algorithm in bytes. But it has `2 (mk -
# 1)` steps, of which the slowest link sets the pace. What hierarchical costs: the leader waits for
# its machine, and the other ranks wait for the leader. In shared memory each rank writes its tensor
# once, reads as much, writes one piece, and reads the tensor again.

# %% [markdown]
# ## What libraries do
#
# - NCCL's trees connect nodes, with a chain of GPUs inside each (documented). Its rings go through
#   all GPUs of a node before they leave it (documented). Inside a node it uses shared memory or
#   NVLink (documented).
# - Open MPI and MPICH use shared memory inside a machine (documented).
# - The backend `by_hand` takes shared memory for an `all_reduce` if all its ranks are on one
#   machine, with an x86 processor: others do not keep the order of writes, and then a rank could
#   see the news before the data. On several machines it takes the hierarchical algorithm for more
#   than 1 MiB.
# - In training, HSDP of FSDP2 is the same idea: parameters are sharded inside a machine, and
#   gradients are reduced between the machines.

# %% [markdown]
# ## Change and try
#
# 1. In `hierarchical`, change `dist.all_reduce(x, group=leaders)` to `pass`. What do ranks 0 and 1
#    have? <details><summary>Answer</summary> You get `should be [1111, 2222, 3333, 4444]`. They
#    have the sum of their machine: 11 22 33 44. </details>
# 2. In `between_machines`, change `"hierarchical", lambda one: one // 4` to `"hierarchical", lambda
#    one: one % 2`. The algorithm is told that ranks 0 to 3 share a machine, and they do not.
#    <details><summary>Answer</summary> You get `should be [1.75, 7.0, 1.0]`. Both leaders are on
#    machine 0, and the messages inside a machine cross the network instead. </details>

# %% [markdown]
# ## Write it yourself
#
# Write a broadcast from rank 0 that enters each machine once.
#
# <details><summary>Answer</summary>
#
# ```python
# def broadcast_by_machine(rank, world_size, device):
#     x = numbers(0, 4, device) if rank == 0 else torch.full((4,), -1, device=device)
#     inside, leaders = groups(rank, world_size)
#     leader = rank // 2 * 2
#     if rank == leader:
#         dist.broadcast(x, src=0, group=leaders)
#     dist.broadcast(x, src=leader, group=inside)
#     check(x, numbers(0, 4, device), "broadcast")
#     return x
# ```
#
# ```text
# broadcast_by_machine: proved on all 4 ranks
#   rank  result
#   0     [1, 2, 3, 4]
#   1     [1, 2, 3, 4]
#   2     [1, 2, 3, 4]
#   3     [1, 2, 3, 4]
# ```
#
# </details>

# %% [markdown]
# ## Read on
#
# - The page [Several machines](../../docs/clusters.md): machines made on one machine, on which the
#   two rings can be measured.
# - The lesson [new_group](../../notebooks/new_group.ipynb): groups, and who must create them.
#
# In PyTorch's documentation:
#
# - [`all_reduce`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_reduce)
# - [`barrier`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.barrier)
# - [`broadcast`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.broadcast)
# - [`broadcast_object_list`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.broadcast_object_list)
# - [`new_group`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.new_group)
# - [`reduce`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.reduce)
#
# Next lesson: [which_one_when](../../notebooks/algorithms/which_one_when.ipynb).
