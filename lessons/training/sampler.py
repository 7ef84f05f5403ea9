# %% [markdown]
"""
# sampler: DistributedSampler, set_epoch and shuffling

DistributedSampler tells each rank which samples to load. Together, the ranks load all samples in an
epoch, a few of them twice, in another order in each epoch.

You know the sampler from [who_takes_what](../../notebooks/route/who_takes_what.ipynb). This second
reading counts its images, and lets a rank run out of data before the others.

    python lessons/training/sampler.py
    torchrun --nproc-per-node 4 lessons/training/sampler.py
"""

# %%
from collectives import check, check_samples, check_training, run
from rank_grid import dealt
from one_process import batch_loss, network, shuffled, train
from itertools import zip_longest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

# %% [markdown]
# ## The idea
#
# A `DataLoader` loads only the images of its own rank, because `DistributedSampler` shuffles all
# numbers with the seed `seed + epoch`, repeats the first ones at the end until n divides their
# count, and gives rank r every n-th of them from position r on.
#
# ![Two ranks take turns in a shuffled list of eight images](../../docs/ideas/sampler.svg)
#
# Here two ranks take turns. A box has the number of its image.

# %% [markdown]
# ## The code
#
# In the one process, `shuffled` gets the epoch as its seed, as the sampler does. The
# loader loads only the numbers of the images, and `train` looks the images up.

# %% [markdown]
# **Predict first.** Every rank shuffles all 1,797 numbers itself, and the ranks send each other
# nothing. Do two ranks load the same image in an epoch?


# %%
def sampler(rank, world_size, device):
    size = 128 // world_size
    shards = DistributedSampler(range(1797), world_size, rank)
    loader = DataLoader(range(1797), size, sampler=shards, drop_last=True)
    mine, whole, rows = [], [], {}
    for epoch in range(3):
        shards.set_epoch(epoch)
        batches = list(loader)
        mine += batches
        whole += shuffled(epoch).split(size * world_size)[:14]
        rows[f"epoch {epoch}"] = shuffled(epoch).tolist(), torch.cat(batches).tolist()
    trained, _ = train(DistributedDataParallel(network(0, device)), batch_loss, mine, device)

    expected, _ = train(network(0, device), batch_loss, whole, device)
    check_training(trained, expected, "three epochs")
    check_samples(trained, expected, "three epochs")
    return {"images": dealt(rows)}


# %%
if __name__ == "__main__":
    run(sampler, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Here they do not: all ranks shuffle with the same seed, and each takes other positions. Each rank
# loads 1792 / 4 = 448 images, because the loader's `drop_last=True` drops the rest.
#
# </details>

# %% [markdown]
# ### The images that are taken twice
#
# Four ranks cannot share 1,797 images equally, which DDP needs.

# %% [markdown]
# **Predict first.** Does the sampler leave images out, or does it give some of them to two ranks?


# %%
def padding(rank, world_size, device):
    shards = DistributedSampler(range(1797), world_size, rank)
    mine = torch.tensor(list(shards), device=device)
    taken = [torch.empty_like(mine) for _ in range(world_size)]
    dist.all_gather(taken, mine)
    twice = (torch.cat(taken).bincount() == 2).sum().item()
    check(twice, -1797 % world_size, "images that two ranks take")
    images = dealt({"epoch 0": (shuffled(0).tolist(), mine.tolist())})
    return {"images of this rank": images, "of all taken twice": twice}


# %%
if __name__ == "__main__":
    run(padding, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# It gives 3 images to two ranks: 450 for each rank, and 1,797 + 3 = 1,800 in all. So the ranks'
# parts are not disjoint, as is often said, not even with `set_epoch`.
#
# </details>

# %% [markdown]
# ### Ranks with fewer batches
#
# If each rank has its own file, one may run out of batches first, and all others then wait for it
# in the next `backward()`. `Join` lets them go on: a finished rank takes part in every
# further `all_reduce` with zeros, at the price of two short calls more in each step
# ([counted](../../docs/exactness.md)). DDP still divides by the number of all ranks, or with
# `divide_by_initial_world_size=False` by the number of those that have a batch.

# %% [markdown]
# **Predict first.** Three ranks have 500 images and the last has 297, so it runs out of batches
# first. Which parameters does it have in the end?


# %%
def uneven_inputs(rank, world_size, device):
    files = shuffled(0).split(2000 // world_size)  # the last one is smaller
    batches = [file.split(64 // world_size)[:-1] for file in files]
    model = DistributedDataParallel(network(0, device))
    with Join([model], divide_by_initial_world_size=False):
        trained, _ = train(model, batch_loss, batches[rank], device, momentum=0)

    whole = [torch.cat(step) for step in zip_longest(*batches, fillvalue=files[0][:0])]
    expected, _ = train(network(0, device), batch_loss, whole, device, momentum=0)
    check_training(trained, expected, "Join")
    return {"steps": len(batches[rank])}


# %%
if __name__ == "__main__":
    run(uneven_inputs, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Those of all other ranks, to the last bit. Rank 3 trains 18 steps while all other ranks train 31,
# and at the end `Join` copies the parameters of a rank that trained all steps. They are those of
# one process whose last 31 - 18 = 13 batches lack the images of rank 3. `Join` does not copy the
# optimizer's state, which is why this step trains without momentum.
#
# </details>

# %%
STEPS = [sampler, padding, uneven_inputs]

# %% [markdown]
# ## Make it wrong
#
# Make one change, run the steps, read what the proof says, and undo it.
#
# 1. **No sampler.** In `sampler`, change `sampler=shards` to `shuffle=True`. It says `should be at
#    most 1e-09 [three epochs]`.
# 2. **Momentum with Join.** In `uneven_inputs`, change `batches[rank], device, momentum=0)` to
#    `batches[rank], device)` and `whole, device, momentum=0)` to `whole, device)`. It says `rank
#    3/4: 0.bias.momentum_buffer: relative error 0.9`.

# %% [markdown]
# ## Pitfalls
#
# - `Join` knows the collectives of DDP only. If the loop itself calls `all_reduce`, the ranks that
#   have finished do not take part.

# %% [markdown]
# ## Read on
#
# - In the program to take home,
#   [`main`](../../examples/train_ddp.py) has it:
#   `sampler.set_epoch(epoch)`.
#
# Each rank now loads what it needs, as long as the batch fits into its memory. Next lesson:
# [accumulation](../../notebooks/training/accumulation.ipynb), for a batch that does not.
