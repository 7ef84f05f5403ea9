# %% [markdown]
"""
# ddp

DistributedDataParallel (DDP) is the data parallel training of PyTorch. It broadcasts the parameters
and averages the gradients, and your training loop stays as it is.

You have written all of this by hand, so you know what to expect: the same network. In this lesson
you check that, see what DDP does differently, and take home a whole program that trains with it.

    python lessons/training/ddp.py
    torchrun --nproc-per-node 4 lessons/training/ddp.py
"""

# %%
from collectives import check, check_samples, check_training, counting, run
from data_parallel import batch_loss, network, shuffled, train
from data_parallel import on_my_shard as by_hand
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

# %% [markdown]
# ## The idea
#
# [data_parallel](../../notebooks/training/data_parallel.ipynb) has four parts: broadcast, shard,
# all_reduce, divide. DDP does three of them. Its constructor broadcasts the parameters and buffers
# of rank 0, and each forward broadcasts the buffers again. During `backward()`, it divides the
# gradients by n and sums them over all ranks. You must still give each rank its own shard.
#
# DDP does not call `all_reduce` for each parameter, because every call has a cost of its own. It
# copies gradients into long tensors, the buckets, and reduces a bucket as soon as all its gradients
# are there, while `backward()` computes the rest. The lesson
# [buckets](../../notebooks/training/buckets.ipynb) makes such buckets by hand.

# %% [markdown]
# ## The code
#
# `by_hand` is the program of data_parallel. With DDP the same step is `on_my_shard` alone.

# %% [markdown]
# **Predict first.** The network has four parameters, with 19 kB of gradients, and a bucket of DDP
# holds up to 25 MB. Our program calls `all_reduce` once for each parameter in each step. How often
# does DDP call it?


# %%
def on_my_shard(model, images, labels):
    rank, n = dist.get_rank(), dist.get_world_size()
    return batch_loss(model, images[rank::n], labels[rank::n])


def ddp(rank, world_size, device):
    inside = network(seed=rank, device=device)
    model = DistributedDataParallel(inside)
    batches = shuffled().split(64 // world_size * world_size)[:-1]
    with counting() as counts:
        trained, _ = train(model, on_my_shard, batches, device)
    # proof: our own program, and one process
    ours, _ = train(network(0, device), by_hand, batches, device)
    expected, _ = train(network(0, device), batch_loss, batches, device)
    check_training(trained, ours, "DDP and ours")
    check_training(trained, expected, "DDP and one process")
    check_samples(trained, expected, "DDP")
    calls = counts["c10d.all_reduce"].calls
    check(calls, len(batches), "calls of all_reduce")
    same = all(a is b for a, b in zip(inside.parameters(), model.parameters(), strict=True))
    check(same, True, "the parameters of DDP are those of the model inside")
    name = next(iter(model.state_dict()))
    return {"steps": len(batches), "all_reduce": calls, "first name": name}


# %%
if __name__ == "__main__":
    run(ddp)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Once in each step, so 28 times: all four gradients together fit into one bucket.
#
# </details>

# %%
STEPS = [ddp]

# %% [markdown]
# ## A program to take home
#
# [train_ddp.py](../../examples/train_ddp.py) is a whole training: data, DDP, validation, and a
# checkpoint from which it continues when it was killed. It needs torch and scikit-learn, and
# nothing of this course:
#
# ```sh
# torchrun --nproc-per-node 2 examples/train_ddp.py
# ```
#
# It begins with `2 ranks with batches of 16`. A step takes 64 images, and each rank
# [accumulates](../../notebooks/training/accumulation.ipynb) the gradients of two batches in it. So
# the batch size of a loader is that of one rank, while with `nn.DataParallel` it is that of all
# GPUs. Start the program twice, and the second run has nothing left to do. Delete `checkpoint.pt`
# to train anew.
#
# Is it faster on two ranks? Not here: on two idle cores of a cloud machine, an epoch took 0.04 s on
# one rank and 0.07 s on two, with one thread for each rank (`python
# benchmarks/seconds_per_epoch.py`). The network is tiny, so computing its 24 steps takes less time
# than their calls do. More ranks pay off only if a step computes for longer than it communicates,
# and [faster](../../notebooks/training/faster.ipynb) measures where that begins.

# %% [markdown]
# ## The proof
#
# `check_training` compares the DDP model with our own program and with one process, on every rank.
# It ignores the `module.` with which DDP begins every name. `counting` counts the calls below DDP.

# %% [markdown]
# ## Make it wrong
#
# Make one change, run the steps, read what the proof says, and undo it.
#
# 1. **Every rank takes the same shard.** In `on_my_shard`, change `images[rank::n],
#    labels[rank::n]` to `images[::n], labels[::n]`. It says `rank 0/4: 2.bias.momentum_buffer:
#    relative error 2`.
# 2. **The model inside is called.** In `ddp`, change `trained, _ = train(model, on_my_shard` to
#    `trained, _ = train(model.module, on_my_shard`. It says `rank 1/4: 2.bias.momentum_buffer:
#    relative error 2`. Nothing is reduced, and there is no error.

# %% [markdown]
# ## Pitfalls
#
# - Call the DDP model, not `model.module`: only DDP's own `forward` prepares the reduction.
# - The keys of `model.state_dict()` begin with `module.`. Save `model.module.state_dict()`, which
#   also loads without DDP ([training](../../notebooks/mistakes/training.ipynb)).
# - The optimizer may be made before or after DDP: the parameters are the same. FSDP replaces them,
#   so there it must come after (`torch/distributed/fsdp/_fully_shard/_fully_shard.py`: "represents
#   the sharded parameters as :class:`DTensor` s").
# - DDP divides by the number of ranks. For unequal shards, weight the loss, as in
#   [shards](../../notebooks/training/shards.ipynb).

# %% [markdown]
# ## Read on
#
# - In the program to take home, [`main`](../../examples/train_ddp.py) has it: `ddp =
#   DistributedDataParallel(model)`.
# - S. Li and others, [*PyTorch Distributed*](https://arxiv.org/abs/2006.15704) (2020): on DDP.
# - The reference of
#   [DistributedDataParallel](https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html).
#
# Next lesson: [shards](../../notebooks/training/shards.ipynb), which are not equally large.
