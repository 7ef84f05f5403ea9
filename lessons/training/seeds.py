# %% [markdown]
"""
# seeds

All ranks need the same random numbers for the start of a network, and different ones for dropout
and augmentation. Both are a matter of seeds.

You will see one process that repeats the dropout of all ranks, loader workers that draw the same
numbers on every rank, and the same run twice, bit for bit.

    python lessons/training/seeds.py
    torchrun --nproc-per-node 4 lessons/training/seeds.py
"""

# %%
from functools import partial
from itertools import chain
from collectives import check, check_training
from collectives.lesson import Curve, digits, run
import random
import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

# %% [markdown]
# ## The idea
#
# A generator of random numbers begins with a seed. Equal seeds give equal numbers. A training on
# several ranks needs both kinds:
#
# - **Equal on all ranks**: the first parameters, and the order of the images, of which each rank
#   takes another shard.
# - **Different on each rank**: dropout, noise, crops and flips. With equal ones, n ranks drop the
#   same units for n different images, and the batch is less random than that of one process.
#
# So set one seed, make the network, and then set a seed that contains the rank.
#
# There are several generators. `torch.manual_seed` sets that of the CPU, and those of all GPUs
# (documented). Python's `random` and numpy have their own, which it does not touch. Each worker of
# a `DataLoader` is a process with generators of its own.

# %% [markdown]
# ## The code
#
# The network of data_parallel gets a dropout layer.


# %%
def network(seed, device):
    torch.manual_seed(seed)
    layers = nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 10)
    return nn.Sequential(*layers).double().to(device)


def shuffled():
    return torch.randperm(1797, generator=torch.Generator().manual_seed(0))


def train(model, backward, batches, device):
    torch.set_num_threads(1)  # the ranks of one machine share its cores
    images, labels = digits(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        losses.append(backward(model, images[batch], labels[batch]))
        optimizer.step()
    return (model, optimizer), Curve(losses)


def shard_loss(model, images, labels, rank, n):
    loss = cross_entropy(model(images[rank::n]), labels[rank::n])
    (loss / n).backward()
    return loss.item()


# %%
def on_my_shard(model, images, labels):
    loss = shard_loss(model, images, labels, dist.get_rank(), dist.get_world_size())
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    return loss


# %% [markdown]
# ### One process with the generators of all ranks
#
# To prove a training with dropout, one process must drop the same units. It computes one shard
# after the other. Before each of them it puts the state of that rank's generator in place, and
# afterwards it keeps the new state.


# %%
def on_all_shards(states, model, images, labels):
    for rank, state in enumerate(states):
        torch.set_rng_state(state)
        shard_loss(model, images, labels, rank, len(states))
        states[rank] = torch.get_rng_state()


def seeds(rank, world_size, device):
    model = network(0, device)  # equal on all ranks, without a broadcast
    torch.manual_seed(1 + rank)
    trained, losses = train(model, on_my_shard, shuffled().split(60)[:28], device)

    states = [torch.manual_seed(1 + r).get_state() for r in range(world_size)]
    backward = partial(on_all_shards, states)
    expected, _ = train(network(0, device), backward, shuffled().split(60)[:28], device)
    check_training(trained, expected, "dropout")
    return {"loss": losses}


# %% [markdown]
# **Predict first.** Each rank has a shard of 15 images and drops half of the 32 units of each. How
# many different patterns for the first image of a shard does a step have, on four ranks? Write the
# number down.

# %%
if __name__ == "__main__":
    run(seeds)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Four, one for each rank. With `torch.manual_seed(1)` on all ranks it is one. In the picture, the
# lines are less even than those of data_parallel: dropout adds chance to each loss.
#
# </details>

# %% [markdown]
# ### Workers of a loader
#
# `DataLoader` starts worker processes, which load and augment the images. Here two workers on each
# rank draw four times from torch, numpy and `random`. When an epoch begins, the loader draws a
# number from torch's generator, and gives each worker a seed made of this number and its own index.


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


# %% [markdown]
# **Predict first.** Four ranks draw 16 numbers from each generator. How many of them are different
# if `torch.manual_seed(0)` was called on every rank? Write the number down.

# %%
if __name__ == "__main__":
    run(loader_workers)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Four: the workers of all ranks get the same seeds, so every rank augments alike. With another seed
# for torch on each rank, all 16 are different, those of numpy and `random` too: the worker sets all
# three.
#
# </details>

# %%
STEPS = [seeds, loader_workers]

# %% [markdown]
# ## The proof
#
# `check_training` compares `seeds` with the process that has the generators of all ranks, on every
# rank. `loader_workers` counts the different numbers of all ranks.

# %% [markdown]
# ## Make it wrong
#
# Each of these is one change. Make it, run the steps, read what the proof says, and undo it.
#
# 1. **The same dropout on every rank.** In `seeds`, change `torch.manual_seed(1 + rank)` to
#    `torch.manual_seed(1)`. It says `rank 0/4: 0.bias.momentum_buffer: relative error 1`.
# 2. **Another start on every rank.** In `seeds`, change `model = network(0, device)` to `model =
#    network(rank, device)`. It says `rank 1/4: 0.bias: relative error 1`.
# 3. **The seed is set in each step.** In `on_my_shard`, change `loss = shard_loss` to
#    `torch.manual_seed(1 + dist.get_rank()); loss = shard_loss`. It says `rank 0/4:
#    0.bias.momentum_buffer: relative error 1`. Every step then drops the same units.
# 4. **The same workers on every rank.** In `loader_workers`, change `("seed by rank", rank)` to
#    `("seed by rank", 0)`. It says `got [[4, 4, 4], [4, 4, 4]], should be`.

# %% [markdown]
# ## Pitfalls
#
# - A seed for each rank must not be set before the network is made, unless its parameters are
#   broadcast. DDP broadcasts them.
# - The sampler must shuffle with the same seed on all ranks. If it takes the generator of torch,
#   one more draw on one rank gives that rank another order, and images are taken twice or never.
# - `torch.manual_seed` does not touch numpy and `random`. Set them too: `numpy.random.seed(seed)`,
#   `random.seed(seed)`.
# - A worker's seed of `rank + worker` is the same for worker 1 of rank 0 and worker 0 of rank 1.
#   Take `rank * workers + worker`, or leave it to the loader.
# - On a GPU, dropout draws from the generator of that GPU. `torch.manual_seed` sets it, but its
#   state is that of `torch.cuda.get_rng_state()` (documented). This lesson keeps the state of the
#   CPU's.
# - A checkpoint must hold the states of the generators of every rank, or the run goes on with other
#   numbers.
# - `multiprocessing_context="fork"` is there because a forked worker need not import `draw`. On
#   macOS, fork is not safe with all libraries.

# %% [markdown]
# ## Write it yourself
#
# Train twice with dropout, and prove that both runs have the same bits. How many of the 2,410
# parameters are equal?
#
# <details><summary>Answer</summary>
#
# ```python
# def same_run_twice(rank, world_size, device):
#     runs = []
#     for _ in range(2):
#         model = network(0, device)
#         torch.manual_seed(1 + rank)
#         train(model, on_my_shard, shuffled().split(60)[:28], device)
#         runs.append(nn.utils.parameters_to_vector(model.parameters()).detach())
#     equal = (runs[0] == runs[1]).sum().item()
#     check(equal, 2410, "parameters with equal bits")
#     return {"parameters with equal bits": equal}
# ```
#
# ```text
# same_run_twice: proved on all 4 ranks
#   rank  parameters with equal bits
#   0     2410
#   1     2410
#   2     2410
#   3     2410
# ```
#
# All of them: the same seeds, the same number of ranks and of threads, and the same order of
# additions. On CUDA this also needs deterministic operations (documented).
#
# </details>

# %% [markdown]
# ## Read on
#
# - [Reproducibility](https://docs.pytorch.org/docs/stable/notes/randomness.html), in PyTorch's
#   documentation: generators, workers, deterministic operations.
#
# In PyTorch's documentation:
#
# - [`all_gather_object`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_gather_object)
# - [`all_reduce`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_reduce)
# - [`get_rank`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.get_rank)
# - [`get_world_size`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.get_world_size)
#
# Next lesson: [validation](../../notebooks/training/validation.ipynb), exact metrics on shards that
# are not equally large.
