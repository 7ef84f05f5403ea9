# %% [markdown]
"""
# seeds: which random numbers are equal on all ranks

All ranks need the same random numbers for the start of a network, and different ones for dropout
and augmentation. Both are a matter of seeds.

With one seed at the top of the program, all ranks drop the same units and augment their images in
the same way. In [save_and_resume](../../notebooks/route/save_and_resume.ipynb) each rank had a seed
of its own. At the end of this lesson you know where to set which seed, also in the workers of a
loader, and how to get the same run twice, bit for bit.

    python lessons/training/seeds.py
    torchrun --nproc-per-node 4 lessons/training/seeds.py
"""

# %%
from functools import partial
from itertools import chain
from collectives import check, check_samples, check_training, run
from rank_grid import RankGrid
from one_process import batch_loss, shuffled, train
import random
import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, dropout
from torch.utils.data import DataLoader

# %% [markdown]
# ## The idea
#
# A training on several ranks needs two kinds of random numbers:
#
# - **Equal on all ranks**: the first parameters, and the order of the images.
# - **Different on each rank**: dropout, noise, crops and flips.
#
# So set one seed, make the network, and then set a seed that contains the rank. Python's `random`
# and numpy have generators of their own, which you set by `random.seed` and `numpy.random.seed`.
# And each worker of a `DataLoader` is a process with its own generators again.

# %% [markdown]
# ## The code
#
# We begin with dropout, which sets half of its inputs to 0, chosen at random. Here the inputs are
# the 32 hidden units.

# %% [markdown]
# **Predict first.** Four ranks call dropout. How many different patterns are there with each seed?


# %%
def dropped_units(rank, world_size, device):
    rows, counts = {}, []
    for name, seed in (("seed 1", 1), ("seed 1 + rank", 1 + rank)):
        torch.manual_seed(seed)
        rows[name] = (nn.Dropout(0.5)(torch.ones(32, device=device)) == 0).tolist()
        dist.all_gather_object(found := [None] * world_size, rows[name])
        counts.append(len({tuple(pattern) for pattern in found}))
    check(counts, [1, world_size], "different patterns")
    legend = "Filled: the unit is dropped."
    shown = RankGrid(rows, "unit", legend, shows="Which units each rank drops")
    return {"patterns": counts, "dropped": shown}


# %%
if __name__ == "__main__":
    run(dropped_units, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 1 and 4. With one seed, n images share each pattern, while one process would draw a new one for
# each image.
#
# </details>

# %% [markdown]
# ### One process with the generators of all ranks
#
# Different patterns on each rank are right, but are they provable? One process must drop the same
# units as all ranks. So it draws for one shard after the other: it restores the state of that
# rank's generator, draws, and keeps the new state. Then it computes the whole batch. Dropout draws
# from the generator of the device that its input is on, so `generator_of` looks there.


# %%
def generator_of(device):
    cuda = device.type == "cuda"
    return torch.cuda.default_generators[device.index] if cuda else torch.default_generator


def network(seed, device):
    torch.manual_seed(seed)
    layers = nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 10)
    return nn.Sequential(*layers).double().to(device)


# %%
def on_my_shard(model, images, labels):
    rank, n = dist.get_rank(), dist.get_world_size()
    loss = cross_entropy(model(images[rank::n]), labels[rank::n])
    (loss / n).backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    return loss.item()


# %%
def on_whole_batch(states, model, images, labels):
    generator, n = generator_of(images.device), len(states)
    factors = images.new_empty(len(images), 32)  # of the hidden units: 0 or 2
    for rank, state in enumerate(states):
        generator.set_state(state)
        factors[rank::n] = dropout(images.new_ones(len(images) // n, 32))
        states[rank] = generator.get_state()
    model[2].forward = factors.mul  # in place of dropout
    return batch_loss(model, images, labels)


def seeds(rank, world_size, device):
    batches = shuffled().split(64 // world_size * world_size)[:28]
    model = network(0, device)  # equal on all ranks, without a broadcast
    torch.manual_seed(1 + rank)
    trained, losses = train(model, on_my_shard, batches, device)

    generator = generator_of(device)
    states = [generator.manual_seed(1 + r).get_state() for r in range(world_size)]
    expected, _ = train(network(0, device), partial(on_whole_batch, states), batches, device)
    check_training(trained, expected, "dropout")
    check_samples(trained, expected, "dropout")
    return {"first and last loss": str(losses)}


# %%
if __name__ == "__main__":
    run(seeds)

# %% [markdown]
# ### Workers of a loader
#
# Augmentation happens in other processes. With `num_workers=2` a `DataLoader` starts two processes
# on each rank. When an epoch begins, the loader draws a number from torch's generator, and gives
# each worker a seed made of this number and the worker's index. Each worker draws twice here.

# %% [markdown]
# **Predict first.** Four ranks draw 16 numbers from each generator. How many of them are different
# if `torch.manual_seed(0)` was called on every rank?


# %%
def draw(batch):
    return torch.rand(()).item(), numpy.random.rand(), random.random()


def loader_workers(rank, world_size, device):
    counts = {}
    for name, seed in (("same seed", 0), ("seed by rank", rank)):
        torch.manual_seed(seed)
        draws = DataLoader(range(4), num_workers=2, collate_fn=draw, multiprocessing_context="fork")
        dist.all_gather_object(found := [None] * world_size, list(draws))
        counts[name] = [len(set(column)) for column in zip(*chain(*found), strict=True)]
    check(list(counts.values()), [[4] * 3, [4 * world_size] * 3], "different numbers")
    return counts


# %%
if __name__ == "__main__":
    run(loader_workers, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Four: the workers of all ranks get the same seeds, so every rank augments in the same way. With
# another seed for torch on each rank, all 16 are different, also those of numpy and `random`,
# because the worker sets all three.
#
# </details>

# %% [markdown]
# ### The same run twice
#
# With the right seeds you can also repeat a run. The same seeds, the same numbers of ranks and
# threads, and the same order of additions give the same bits.

# %% [markdown]
# **Predict first.** How many of the 2,410 parameters are equal after two runs with dropout?


# %%
def same_run_twice(rank, world_size, device):
    runs = []
    for _ in range(2):
        model = network(0, device)
        torch.manual_seed(1 + rank)
        train(model, on_my_shard, shuffled().split(60)[:28], device)
        runs.append(nn.utils.parameters_to_vector(model.parameters()).detach())
    equal = (runs[0] == runs[1]).sum().item()
    check(equal, 2410, "parameters with equal bits")
    dist.all_gather_object(following := [None] * world_size, torch.rand(()).item())
    check(len(set(following)), world_size, "different numbers after the dropout of the ranks")
    return {"parameters with equal bits": equal}


# %%
if __name__ == "__main__":
    run(same_run_twice, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 2410 of 2410. On CUDA this also needs [deterministic
# operations](https://docs.pytorch.org/docs/stable/notes/randomness.html).
#
# </details>

# %%
STEPS = [dropped_units, seeds, loader_workers, same_run_twice]

# %% [markdown]
# ## The proof
#
# `check_training` compares `seeds` with the process that has the generators of all ranks, on every
# rank. `loader_workers` counts the different numbers of all ranks.

# %% [markdown]
# ## On GPUs
#
# - `torch.manual_seed` sets the generators of all GPUs, too (`torch/random.py`: "Sets the seed for
#   generating random numbers on all devices").

# %% [markdown]
# ## Make it wrong
#
# Make one change, run the steps, read what the proof says, and undo it.
#
# 1. **The same dropout on every rank.** In `seeds`, change `torch.manual_seed(1 + rank)` to
#    `torch.manual_seed(1)`. It says `rank 0/4: 0.bias.momentum_buffer: relative error 1`.
# 2. **Another start on every rank.** In `seeds`, change `model = network(0, device)` to `model =
#    network(rank, device)`. It says `rank 1/4: 0.bias: relative error 1`.
# 3. **The seed is set in each step.** In `on_my_shard`, change `loss = cross_entropy` to
#    `torch.manual_seed(1 + rank); loss = cross_entropy`. It says `rank 0/4:
#    0.bias.momentum_buffer: relative error 1`: every step drops the same units.
# 4. **The same workers on every rank.** In `loader_workers`, change `("seed by rank", rank)` to
#    `("seed by rank", 0)`. It says `got [[4, 4, 4], [4, 4, 4]], should be`.

# %% [markdown]
# ## Write it yourself
#
# In your folder of [exercises](../../README.md#exercises):
#
# ```sh
# collectives practice one_data_set
# ```

# %% [markdown]
# ## Pitfalls
#
# - "Other seeds on each rank do no harm" is said too easily. A seed for each rank must not be set
#   before the network is made, unless its parameters are broadcast, as DDP does.
# - A sampler of your own must not use torch's generator: one more draw on one rank gives that rank
#   another order, and then it takes some images twice and some never.
# - A worker's seed of `rank + worker` is the same for worker 1 of rank 0 and worker 0 of rank 1.
#   Leave it to the loader.

# %% [markdown]
# ## Read on
#
# In the program to take home, [`main`](../../examples/train_ddp.py) has it:
# `torch.manual_seed(step * n + rank)`.
#
# Parameters stay equal because their gradients are averaged. Next lesson:
# [buffers](../../notebooks/training/buffers.ipynb), which no gradient reaches.
