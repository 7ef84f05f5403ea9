# %% [markdown]
"""
# hierarchical: all_reduce inside machines first, then between them

An `all_reduce` first inside each machine, then between the machines, sends less over the network.

Your eight GPUs share a machine, and training is fast. You add a second machine, and each step now
waits for the cable between the two. In this lesson you see how many bytes must cross that cable,
how two forms of a hierarchical `all_reduce` send no more than these, and which of the two keeps all
network cards busy.

    python lessons/algorithms/hierarchical.py
    torchrun --nproc-per-node 4 lessons/algorithms/hierarchical.py
"""

# %%
from collectives import SchedulePlayback, check, computed, counting, note_calls, run
from collectives.algorithms import count
import torch
import torch.distributed as dist

# %% [markdown]
# ## The idea
#
# Inside a machine the ranks exchange data over memory or NVLink, which is much faster than the
# network between machines. So add up inside each machine first: then each sum crosses the network
# once, instead of once for each rank.

# %% [markdown]
# ## The code
#
# ### Every rank works
#
# Suppose that a machine has two ranks. Each rank is in two groups, that of its machine, and that of
# the ranks at its place in all machines, and every rank must create all groups, in the same order.
# Then three calls make an `all_reduce`:
#
# 1. a `reduce_scatter` inside each machine, after which each rank has the sum of one piece,
# 2. an `all_reduce` of this piece between the machines,
# 3. and an `all_gather` inside each machine.
#
# `counting` counts the bytes that each rank passes to the call between the machines.

# %% [markdown]
# **Predict first.** The tensor has 32 bytes. If only one rank of each machine sent to the other
# machine, it would pass all 32 to the `all_reduce`. How many does each rank pass to it here?


# %%
def numbers(rank, length, device):
    return torch.arange(1, length + 1, device=device) * 10**rank


def groups(rank, n):
    """My machine, and the ranks at my place in all machines; with odd n, one rank a machine."""
    size = 2 if n % 2 == 0 else 1
    machines = torch.arange(n).view(-1, size)
    inside = [dist.new_group(machine.tolist()) for machine in machines]
    across = [dist.new_group(place.tolist()) for place in machines.T]
    return inside[rank // size], across[rank % size]


def hierarchical(rank, world_size, device):
    x, (inside, across) = numbers(rank, 4, device), groups(rank, world_size)
    calls = note_calls()  # what this rank calls from here on
    piece = torch.empty_like(x[: 4 // inside.size()])
    dist.reduce_scatter_single(piece, x, group=inside)
    with counting() as between:
        dist.all_reduce(piece, group=across)
    dist.all_gather_single(x, piece, group=inside)

    check(x, numbers(0, 4, device) * int("1" * world_size), "all_reduce")
    three = ["reduce_scatter_single", "all_reduce", "all_gather_single"]
    check([call.name for call in calls], three, "three calls")
    nbytes = between["c10d.all_reduce"].bytes
    check(nbytes, x.nbytes // (2 - world_size % 2), "bytes between the machines")
    return {"after": x, "bytes between machines": nbytes}


# %%
if __name__ == "__main__":
    run(hierarchical, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 16, because each of the two ranks does half of the work. If each has a network card of its own,
# both cards are busy, and the call between the machines takes half of the time.
#
# This is what FSDP2 does with gradients in its hybrid form, HSDP: it shards a layer inside the
# machine, adds each shard up between the machines, and gathers the layer inside again
# ([hybrid](../../notebooks/model_parallel/hybrid.ipynb)).
#
# </details>

# %% [markdown]
# ### One leader for each machine
#
# A machine with one network card needs only one rank that sends to other machines, the leader. Here
# the leaders are the even ranks. MPI libraries and our backend `by_hand` do it with a reduce inside
# each machine, an `all_reduce` between the leaders, and a broadcast inside each machine.

# %% [markdown]
# **Predict first.** A machine has eight GPUs and eight network cards. How many of the cards are
# busy with this algorithm?


# %%
def leaders_only(rank, world_size, device):
    x, leader = numbers(rank, 4, device), rank // 2 * 2
    machines = [list(range(world_size))[one : one + 2] for one in range(0, world_size, 2)]
    inside = [dist.new_group(ranks) for ranks in machines][rank // 2]
    leaders = dist.new_group([ranks[0] for ranks in machines])
    calls = note_calls()  # what this rank calls from here on
    dist.reduce(x, dst=leader, group=inside)
    with counting() as between:
        if rank == leader:
            dist.all_reduce(x, group=leaders)
    dist.broadcast(x, src=leader, group=inside)

    check(x, numbers(0, 4, device) * int("1" * world_size), "all_reduce")
    expected = ["reduce", *["all_reduce"] * (rank == leader), "broadcast"]
    check([call.name for call in calls], expected, "inside, between the leaders, inside")
    nbytes = between["c10d.all_reduce"].bytes
    check(nbytes, x.nbytes * (rank == leader), "bytes between the machines")
    memory = [[10**one, 2 * 10**one] for one in range(4)]
    return {
        "after": x,
        "bytes between machines": nbytes,
        "schedule": SchedulePlayback("all_reduce", "hierarchical", memory, per_node=2),
    }


# %%
if __name__ == "__main__":
    run(leaders_only, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# One card of eight, that of the leader, because the other ranks pass 0 bytes. So use the first form
# if each rank has a card. The picture shows the schedule
# [`hierarchical.py`](../../collectives/algorithms/hierarchical.py): one step inside the machines,
# two for the ring of the leaders, and one inside again.
#
# </details>

# %% [markdown]
# ### What leaves a machine
#
# Is that much better than a ring? Put eight ranks on two machines. Each rank of the ring sends
# `2 * 7 / 8 = 1.75` tensors to its neighbour. If the ranks are placed in blocks, 0 to 3 on one
# machine and 4 to 7 on the other, one neighbour in four is on the other machine. If they are placed
# in turn, every neighbour is. The step counts what leaves machine 0, from the schedules.

# %% [markdown]
# **Predict first.** A ring in blocks, a ring in turn, and a hierarchical `all_reduce`: which of the
# three sends the most out of machine 0, and is the hierarchical one far below the ring in blocks?


# %%
@computed
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

    ring = 2 * 7 / 8  # one rank of the machine sends it out, or all four do
    check(list(found.values()), [ring, 4 * ring, 1.0], "tensors that leave machine 0")
    return found


# %%
if __name__ == "__main__":
    run(between_machines, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# The ring in turn sends 7 tensors, because all four ranks of the machine send 1.75 to the other
# machine. If the launcher numbers the ranks in blocks, as torchrun does, a quarter of that is left.
# The hierarchical one sends 1, a little more than half as much as the ring in blocks.
#
# </details>

# %%
STEPS = [hierarchical, leaders_only, between_machines]

# %% [markdown]
# ## The count
#
# This is what leaves a machine, for m machines with k ranks each, and a tensor of S bytes:
#
# | algorithm | bytes |
# |---|---|
# | ring, ranks in blocks | `2 (mk - 1) / mk * S`, nearly `2 S` |
# | ring, ranks in turn | k times that |
# | recursive doubling | `k S` in each step between machines |
# | hierarchical, by leaders | `2 (m - 1) / m * S`, all of it by one rank |
# | hierarchical, by all ranks | the same, in k equal parts |
#
# For two machines a ring in blocks sends nearly twice as many bytes as the hierarchical algorithm,
# but for many machines hardly more. What remains are its `2 (mk - 1)` steps, in which the slowest
# link sets the pace.

# %% [markdown]
# ## What libraries do
#
# - NCCL's [trees](../../notebooks/algorithms/tree.ipynb) connect nodes. Inside a node it uses
#   NVLink, PCIe or shared memory ([its
#   manual](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html)).
# - The backend `by_hand` uses shared memory for an `all_reduce` if all its ranks are on one machine
#   with an x86 processor. On several machines it uses the hierarchical algorithm for more than 1
#   MiB.

# %% [markdown]
# ## Change and try
#
# 1. In `leaders_only`, change `dist.all_reduce(x, group=leaders)` to `pass`. What do ranks 0 and 1
#    have? <details><summary>Answer</summary> You get `rank 0/4: got [11, 22, 33, 44], should be
#    [1111, 2222, 3333, 4444] [all_reduce, int64[4], gloo]`. They have the sum of their machine.
#    </details>
# 2. In `between_machines`, change `"hierarchical", lambda one: one // 4` to `"hierarchical", lambda
#    one: one % 2`. The algorithm assumes that ranks 0 to 3 share a machine, but they do not.
#    <details><summary>Answer</summary> You get `rank 0/4: got [1.75, 7.0, 4.0], should be [1.75,
#    7.0, 1.0] [tensors that leave machine 0, gloo]`. Both leaders are on machine 0, and the
#    messages inside a machine cross the network instead. </details>

# %% [markdown]
# ## Write it yourself
#
# In your folder of [exercises](../../README.md#exercises):
#
# ```sh
# collectives practice all_reduce_on_a_grid
# ```

# %% [markdown]
# ## Read on
#
# - The page [Several machines](../../docs/clusters.md): a lab that measures the two rings.
#
# You now know several ways to an `all_reduce`. Next lesson:
# [which_one_when](../../notebooks/algorithms/which_one_when.ipynb), which computes their times.
