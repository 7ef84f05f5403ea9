# %% [markdown]
"""
# backend_in_python: write a process group backend of your own

A process group in Python executes the algorithms of this chapter, and DDP and FSDP2 train on it.

Are the algorithms of this chapter good enough for a training? DDP and FSDP2 call a process group
and do not ask what is in it, so you can pass them one of your own. In this lesson you first see the
fastest way between ranks on one machine, in which nothing is sent. Then DDP and FSDP2 train on our
algorithms, and the model is that of one process.

    python lessons/algorithms/backend_in_python.py
    torchrun --nproc-per-node 4 lessons/algorithms/backend_in_python.py
"""

# %%
import os
import tempfile

import collectives.backends.register  # noqa: F401  (torch.distributed now knows by_hand)
from collectives import Times, check, check_training, counting, digits, looked_up, run
from shared_rows import SharedRows
import measured
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

# %% [markdown]
# ## Memory that all ranks share
#
# Ranks on one machine can map the same memory, and then nobody has to send anything. Each rank
# writes its tensor into its row, reads one piece of all rows, and adds. It puts the sum into row 0,
# from which every rank copies. Messages are not needed any more, but waiting is, because no rank
# may read before all have written. Here a barrier does that, so shared memory gains nothing if the
# barrier is slow.
#
# `SharedRows` notes what a rank writes and reads, and how many barriers it has passed by then. The
# picture is drawn from these notes.


# %%
def shared_memory(rank, world_size, device):
    length = 4 * world_size
    x = torch.arange(1, length + 1) * 10**rank
    name = [tempfile.mkstemp()[1] if rank == 0 else None]
    dist.broadcast_object_list(name, src=0)
    memory = torch.from_file(name[0], shared=True, size=world_size * length, dtype=x.dtype)
    mine = slice(4 * rank, 4 * rank + 4)

    with counting() as calls:
        rows = SharedRows(memory.view(world_size, length), calls)
        rows[rank] = x
        dist.barrier()
        if rank == 0:
            os.remove(name[0])  # the memory itself goes when the last rank has gone
        rows[0, mine] = rows[:, mine].sum(0)
        dist.barrier()
        x.copy_(rows[0])

    check(x, torch.arange(1, length + 1) * int("1" * world_size), "all_reduce")
    check(list(calls), ["c10d.barrier"], "what was called: nothing is sent")
    expected = f"writes {length}; reads {length}, writes 4; reads {length}"  # a piece has 4
    check(str(rows), expected, "elements: its row; one piece of all rows; the sum")
    return {"the first four": x[:4], "elements": rows}


# %%
if __name__ == "__main__":
    run(shared_memory)

# %% [markdown]
# A second `all_reduce` in the same memory would need another barrier, because a fast rank must not
# write its next tensor while a slow one still copies. The backend `by_hand` uses three such
# memories in turn instead.

# %% [markdown]
# ### Measured
#
# How long does an `all_reduce` take if nothing is sent? This step looks the times up on the page
# [Algorithms](../../docs/algorithms.md), where 4 ranks and 2 ranks had an idle machine with two
# cores.


# %%
@looked_up
def shared_memory_measured(rank, world_size, device):
    found = {}
    for ranks in (4, 2):
        curves = measured.times(ranks, "gloo", "binomial_tree", "shared_memory")
        times = Times(curves, against="binomial_tree", where=measured.where(ranks))
        check(times.fastest(), [(4, "shared_memory")], "the fastest, by size")
        found[f"{ranks} ranks"] = times
    return found


# %%
if __name__ == "__main__":
    run(shared_memory_measured)

# %% [markdown]
# The numbers in the pictures say how many times faster than the tree the shared memory of `by_hand`
# is. Of the three, shared memory is the fastest at every size.

# %% [markdown]
# ## DDP on a backend made of these algorithms
#
# `by_hand` is a process group in Python, which executes the schedules of this chapter over sockets,
# or uses shared memory. You pass it to DDP like any other group. The training is that of
# [shards](../../notebooks/training/shards.ipynb): 28 batches of 64 images, in
# float64. `check_training` compares the model with that of one process, and the bits among the
# ranks. (The backend needs Linux.)
#
# So "DDP averages the gradients in a ring" need not be true: DDP only calls `all_reduce`. On one
# machine it goes through shared memory here, and no message is sent.


# %%
def network(seed, device):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).double().to(device)


def train(model, batches, rank=0, n=1):
    """Rank `rank` of n takes every n-th image of each batch."""
    torch.set_num_threads(1)  # the ranks of one machine share its cores
    images, labels = digits("cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for batch in batches:
        optimizer.zero_grad()
        loss = cross_entropy(model(images[batch[rank::n]]), labels[batch[rank::n]])
        loss.backward()
        optimizer.step()
    return (model, optimizer), loss.item()


def shuffled(n):
    """Batches that can be cut in n equal shards."""
    order = torch.randperm(1797, generator=torch.Generator().manual_seed(0))
    return order.split(64 // n * n)[:-1]


def ddp_by_hand(rank, world_size, device):
    group, batches = dist.new_group(backend="by_hand"), shuffled(world_size)
    model = DistributedDataParallel(network(rank, "cpu"), process_group=group)
    with counting() as counts:
        trained, loss = train(model, batches, rank, world_size)

    expected, _ = train(network(0, "cpu"), batches)
    check_training(trained, expected, "DDP on by_hand")
    check(dist.get_backend(model.process_group), "by_hand", "the backend of DDP")
    if group.shares_memory:  # ranks of one machine
        check("by_hand.message" in counts, False, "messages of DDP, in a ring or otherwise")
    return {"last loss": loss}


# %%
if __name__ == "__main__":
    run(ddp_by_hand)

# %% [markdown]
# ## FSDP2 on it
#
# DDP needs little more than `all_reduce`. FSDP2 needs more calls, because it shards the parameters,
# gathers them before they are used, and reduces and scatters the gradients. It finds its group in a
# `DeviceMesh`. To compare the model, each rank gathers all parameters and the momentum of the
# optimizer.

# %% [markdown]
# **Predict first.** The network has 2,410 parameters. FSDP2 shards a tensor by rows: the weights
# have 32 and 10 rows of 64 and 32, the biases 32 and 10. Do all four ranks have equally many
# parameters? If not, which rank has the fewest?


# %%
def gathered(trained):
    model, optimizer = trained
    whole = network(0, "cpu")
    other = torch.optim.SGD(whole.parameters(), lr=0.1, momentum=0.9)
    for full, shard in zip(whole.parameters(), model.parameters(), strict=True):
        full.data.copy_(shard.full_tensor())
        momentum = optimizer.state[shard]["momentum_buffer"].full_tensor()
        other.state[full]["momentum_buffer"] = momentum
    return whole, other


def fsdp_by_hand(rank, world_size, device):
    group, batches = dist.new_group(backend="by_hand"), shuffled(world_size)
    model = fully_shard(network(0, "cpu"), mesh=DeviceMesh.from_group(group, "cpu"))
    trained, loss = train(model, batches, rank, world_size)

    expected, _ = train(network(0, "cpu"), batches)
    check_training(gathered(trained), expected, "FSDP2 on by_hand")
    mesh = next(model.parameters()).device_mesh
    check(dist.get_backend(mesh.get_group()), "by_hand", "the backend of FSDP2")
    own = sum(one.to_local().numel() for one in model.parameters())
    return {"last loss": loss, "own parameters": own}


# %%
if __name__ == "__main__":
    run(fsdp_by_hand, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# No: the last rank has 553, and each of the other three 619. Of 32 rows every rank has a quarter,
# but 10 rows cannot be cut evenly, so rank 3 has one of them and every other rank three. The losses
# are those of DDP, because it is the same training, although DDP calls `all_reduce` on `by_hand`,
# and FSDP2 `all_gather` and `reduce_scatter`.
#
# </details>

# %%
STEPS = [shared_memory, shared_memory_measured, ddp_by_hand, fsdp_by_hand]

# %% [markdown]
# ## Change and try
#
# 1. In `ddp_by_hand`, change `DistributedDataParallel(network(rank, "cpu"), process_group=group)`
#    to `network(rank, "cpu")`. <details><summary>Answer</summary> You get `rank 2/4:
#    2.bias.momentum_buffer: relative error 3, should be at most 1e-09 [DDP on by_hand]`. Each rank
#    trains a model of its own. </details>

# %% [markdown]
# ## Read on
#
# - The page [Algorithms](../../docs/algorithms.md): which algorithm `by_hand` uses, and how fast it
#   is.
# - [`group.py`](../../collectives/process_groups/by_hand/group.py): the process group.
#
# This was the last lesson on algorithms. Back to [all chapters](../../README.md).
