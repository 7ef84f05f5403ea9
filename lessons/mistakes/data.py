# %% [markdown]
"""
# data: wrong or uneven batches, samples, seeds and metrics

The collectives are right, but what the ranks put into them is wrong: samples, random numbers,
metrics, or the lines that they print.

None of these seven mistakes raises an error. The job runs to its end, and the model is a little
worse than it should be, or a number in your report is not true, which makes them harder to notice
than any hang. At the end of this lesson you know what to check before a long run.

Find each mistake yourself first: read "You see" and the program, and say which line is wrong. Then
open the output, the answer, and the cure below it.

    python lessons/mistakes/data.py
    torchrun --nproc-per-node 4 lessons/mistakes/data.py
"""

# %%
from collectives import check, cure, mistake, run, span
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
import numpy as np
import random
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

# %% [markdown]
# ## Program 1: random flips
#
# **You see.** There is no error. The model is a little worse than it should be.


# %%
@mistake("wrong numbers", ranks=4)
def random_flips(rank, world_size, device):
    torch.manual_seed(0)
    flips = torch.randint(2, (16,), device=device)  # which images are mirrored
    everyone = [torch.zeros_like(flips) for _ in range(world_size)]
    dist.all_gather(everyone, flips)
    check(len({tuple(one.tolist()) for one in everyone}), 4, "different draws")


# %%
if __name__ == "__main__":
    run(random_flips, folded=True)

# %% [markdown]
# <details><summary>What is wrong?</summary>
#
# **Cause: the same seed on every rank.** A seed makes runs repeatable, but it also makes ranks
# equal: the batches differ, and yet every rank mirrors, crops and drops out in the same way.
#
# **Cure.** Add the rank to the seed of whatever should differ. The initial weights should not, so
# use the same seed for them, or broadcast them, as DDP does.
#
# **Early.** Gather one random number from every rank, and check that they differ.
#
# </details>


# %%
@cure(ranks=4)
def a_seed_of_its_own(rank, world_size, device):
    torch.manual_seed(0 + rank)
    flips = torch.randint(2, (16,), device=device)
    everyone = [torch.zeros_like(flips) for _ in range(world_size)]
    dist.all_gather(everyone, flips)
    different = len({tuple(one.tolist()) for one in everyone})
    check(different, 4, "different draws")
    return {"different draws": different}


# %%
if __name__ == "__main__":
    run(a_seed_of_its_own, folded=True)

# %% [markdown]
# ## Program 2: random numbers of three libraries
#
# **You see.** The ranks draw different numbers with torch, but equal numbers with `random` and
# numpy.


# %%
@mistake("wrong numbers", ranks=3)
def three_generators(rank, world_size, device):
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0 + rank)
    draws = [random.randrange(1000), np.random.randint(1000), torch.randint(1000, ()).item()]
    everyone = [None] * world_size
    dist.all_gather_object(everyone, draws)
    different = [len(set(one_library)) for one_library in zip(*everyone, strict=True)]
    check(different, [3, 3, 3], "different draws of random, numpy, torch")


# %%
if __name__ == "__main__":
    run(three_generators, folded=True)

# %% [markdown]
# <details><summary>What is wrong?</summary>
#
# **Cause: only torch is seeded with the rank.** torch, numpy and Python's `random` have a generator
# each, and many augmentations use the last two, which still have the same seed everywhere.
#
# **Cure.** Seed all three with the rank. In the workers of a `DataLoader` the seed of torch is
# enough, because they take their seeds for all three from torch's generator in their rank
# ([seeds](../../notebooks/training/seeds.ipynb) shows it).
#
# **Early.** Search your transforms for `random.` and `np.random.`.
#
# </details>


# %%
@cure(ranks=3)
def all_three_are_seeded(rank, world_size, device):
    random.seed(0 + rank)
    np.random.seed(0 + rank)
    torch.manual_seed(0 + rank)
    draws = [random.randrange(1000), np.random.randint(1000), torch.randint(1000, ()).item()]
    everyone = [None] * world_size
    dist.all_gather_object(everyone, draws)
    different = [len(set(one_library)) for one_library in zip(*everyone, strict=True)]
    check(different, [3, 3, 3], "different draws of random, numpy, torch")
    return dict(zip(["random", "numpy", "torch"], draws, strict=True))


# %%
if __name__ == "__main__":
    run(all_three_are_seeded, folded=True)

# %% [markdown]
# ## Program 3: one epoch on three ranks
#
# **You see.** An epoch takes as long on three ranks as on one.


# %%
@mistake("wrong numbers", ranks=3)
def one_epoch(rank, world_size, device):
    loader = DataLoader(range(6), batch_size=2, shuffle=True)
    samples = torch.tensor([len(torch.cat(list(loader)))], device=device)
    dist.all_reduce(samples)
    check(samples, torch.tensor([6]), "samples in one epoch, all ranks together")


# %%
if __name__ == "__main__":
    run(one_epoch, folded=True)

# %% [markdown]
# <details><summary>What is wrong?</summary>
#
# **Cause: there is no sampler.** A `DataLoader` does not know about ranks, so each of the three
# reads all 6 samples, 18 in all. DDP does not divide the data either.
#
# **Cure.** Pass a `DistributedSampler`, which gives each rank its share. Then leave out
# `shuffle=True`, because the sampler shuffles.
#
# **Early.** Print `len(loader)` on 1 and on 2 ranks: with 2 ranks it should be half.
#
# </details>


# %%
@cure(ranks=3)
def a_sampler(rank, world_size, device):
    loader = DataLoader(range(6), batch_size=2, sampler=DistributedSampler(range(6)))
    mine = torch.cat(list(loader)).to(device)
    everyone = [torch.full_like(mine, -1) for _ in range(world_size)]
    dist.all_gather(everyone, mine)
    check(
        torch.cat(everyone).sort().values,
        torch.arange(6),
        "samples in one epoch, all ranks together",
    )
    return {"samples": mine}


# %%
if __name__ == "__main__":
    run(a_sampler, folded=True)

# %% [markdown]
# ## Program 4: a sampler deals out six samples
#
# **You see.** Sample 5 is in the epoch twice, and sample 4 never.


# %%
@mistake("wrong numbers", ranks=3)
def deal_out_a_data_set(rank, world_size, device):
    torch.manual_seed(rank)  # the ranks should draw different augmentations
    data = torch.arange(6)[torch.randperm(6)].to(device)  # the samples 0 to 5, shuffled once
    mine = data[list(DistributedSampler(data, shuffle=False))]
    everyone = [torch.full_like(mine, -1) for _ in range(world_size)]
    dist.all_gather(everyone, mine)
    check(
        torch.cat(everyone).sort().values,
        torch.arange(6),
        "samples in one epoch, all ranks together",
    )


# %%
if __name__ == "__main__":
    run(deal_out_a_data_set, folded=True)

# %% [markdown]
# <details><summary>What is wrong?</summary>
#
# **Cause: every rank makes a data set of its own.** Each rank shuffles with its own random numbers,
# but `DistributedSampler` deals out positions: position 0 to rank 0, position 1 to rank 1. So each
# rank takes the right positions, and finds samples there that are not those of the other ranks'
# order. The same happens with synthetic data, and with a random split: then samples for validation
# are in another rank's training data.
#
# **Cure.** Make the data with the same seed on every rank, or make them once and broadcast them.
# Seed with the rank only afterwards.
#
# **Early.** Compare a checksum over the ranks. `data.sum()` is the same for every order of the
# data, so take `data[0]`.
#
# </details>


# %%
@cure(ranks=3)
def one_data_set(rank, world_size, device):
    torch.manual_seed(0)
    data = torch.arange(6)[torch.randperm(6)].to(device)
    torch.manual_seed(rank)  # from here on, the ranks draw different numbers
    mine = data[list(DistributedSampler(data, shuffle=False))]
    everyone = [torch.full_like(mine, -1) for _ in range(world_size)]
    dist.all_gather(everyone, mine)
    check(torch.initial_seed(), rank, "the seed of what is drawn later")
    check(
        torch.cat(everyone).sort().values,
        torch.arange(6),
        "samples in one epoch, all ranks together",
    )
    return {"mine": mine}


# %%
if __name__ == "__main__":
    run(one_data_set, folded=True)

# %% [markdown]
# ## Program 5: three epochs
#
# **You see.** The samples have the same order in every epoch.


# %%
@mistake("wrong numbers", ranks=2)
def three_epochs(rank, world_size, device):
    sampler = DistributedSampler(range(8), dist.get_world_size(), dist.get_rank())
    orders = [tuple(sampler) for _epoch in range(3)]
    check(len(set(orders)), 3, "different orders in 3 epochs")


# %%
if __name__ == "__main__":
    run(three_epochs, folded=True)

# %% [markdown]
# <details><summary>What is wrong?</summary>
#
# **Cause: `set_epoch` is not called.** All ranks must shuffle alike, so the sampler draws the order
# from a seed and the number of the epoch. But it cannot know this number by itself, and without
# `set_epoch` it is always 0.
#
# **Cure.** Call `sampler.set_epoch(epoch)` before each epoch. With `shuffle=False` the call changes
# nothing.
#
# **Early.** Print the first samples of the first two epochs.
#
# </details>


# %%
@cure(ranks=2)
def set_epoch(rank, world_size, device):
    sampler = DistributedSampler(range(8), dist.get_world_size(), dist.get_rank())
    orders = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        orders.append(tuple(sampler))
    check(len(set(orders)), 3, "different orders in 3 epochs")
    return {f"epoch {epoch}": order for epoch, order in enumerate(orders)}


# %%
if __name__ == "__main__":
    run(set_epoch, folded=True)

# %% [markdown]
# ## Program 6: the accuracy of a validation
#
# **You see.** The accuracy is 7 of 9, but the validation set has 7 samples, and the model is right
# about 6 of them.


# %%
@mistake("wrong numbers", ranks=3)
def accuracy_of_a_validation(rank, world_size, device):
    is_right = torch.tensor([0.0, 1, 1, 1, 1, 1, 1], device=device)  # the answers to the 7 samples
    mine = is_right[list(DistributedSampler(is_right, shuffle=False))]
    both = torch.tensor([mine.sum(), len(mine)], device=device)
    dist.all_reduce(both)
    check(both, torch.tensor([6.0, 7.0]), "right answers, samples")


# %%
if __name__ == "__main__":
    run(accuracy_of_a_validation, folded=True)

# %% [markdown]
# <details><summary>What is wrong?</summary>
#
# **Cause: padded samples count twice.** 7 samples cannot be divided evenly among three ranks, so
# `DistributedSampler` repeats some until they can, here the first two. One of these is wrong and
# one is right, and each counts twice.
#
# **Cure.** For validation take every n-th sample without padding, and reduce two sums: right
# answers and samples. The ranks then have different numbers of batches, so make sure that the loop
# over batches contains no collective.
#
# **Early.** Sum the number of samples over all ranks, and compare it with the length of the
# validation set.
#
# </details>


# %%
@cure(ranks=3)
def exact_accuracy(rank, world_size, device):
    is_right = torch.tensor([0.0, 1, 1, 1, 1, 1, 1], device=device)
    mine = is_right[rank::world_size]
    both = torch.tensor([mine.sum(), len(mine)], device=device)
    dist.all_reduce(both)
    check(both, torch.tensor([6.0, 7.0]), "right answers, samples")
    return {"samples": len(mine), "accuracy": both[0] / both[1]}


# %%
if __name__ == "__main__":
    run(exact_accuracy, folded=True)

# %% [markdown]
# ## Program 7: the ranks print in turn
#
# **You see.** The ranks print one after the other, with a barrier after each, and yet the log is
# empty. Later its lines are there, in any order.


# %%
@contextmanager
def shared_log(rank):
    """A file that every rank can append to, as when the output of a job goes into one."""
    with TemporaryDirectory() if rank == 0 else nullcontext() as folder:
        shared = [folder]
        dist.broadcast_object_list(shared, src=0)
        yield Path(shared[0], "log")
        dist.barrier()  # all have looked


@mistake("wrong numbers", ranks=3)
def printing_in_turn(rank, world_size, device):
    with shared_log(rank) as path, open(path, "a") as log:
        for turn in range(world_size):
            if rank == turn:
                with span("print"):
                    print(f"rank {rank}", file=log)
            dist.barrier()
        lines = path.read_text().splitlines()
        dist.barrier()  # nobody closes the log before all have looked
    check(lines, ["rank 0", "rank 1", "rank 2"], "print, barrier")


# %%
if __name__ == "__main__":
    run(printing_in_turn, folded=True)

# %% [markdown]
# <details><summary>What is wrong?</summary>
#
# **Cause: a barrier does not write what was printed.** `print` into a file or a pipe only fills a
# buffer, which is written when it is full or when the program ends, and the barrier knows nothing
# of it. Under torchrun the lines of all ranks pass through one more process.
#
# **Cure.** Gather the lines on one rank and let it print them. (`flush=True` writes the buffer, but
# the pipe remains.)
#
# **Early.** If the order of lines matters, write the rank and the time into each line, so that you
# can sort them.
#
# </details>


# %%
@cure(ranks=3)
def printed_by_one(rank, world_size, device):
    lines = [None] * world_size if rank == 0 else None
    dist.gather_object(f"rank {rank}", lines, dst=0)
    with shared_log(rank) as path:
        if rank == 0:
            with span("print"):
                path.write_text("\n".join(lines))
        dist.barrier()  # rank 0 has closed the log
        lines = path.read_text().splitlines()
    check(lines, ["rank 0", "rank 1", "rank 2"], "gather_object, print")
    return {"log": lines}


# %%
if __name__ == "__main__":
    run(printed_by_one, folded=True)

# %% [markdown]
# Next lesson: [training](../../notebooks/mistakes/training.ipynb), in which the samples are right,
# but the loop around the model is not.

# %%
STEPS = [
    random_flips,
    a_seed_of_its_own,
    three_generators,
    all_three_are_seeded,
    one_epoch,
    a_sampler,
    deal_out_a_data_set,
    one_data_set,
    three_epochs,
    set_epoch,
    accuracy_of_a_validation,
    exact_accuracy,
    printing_in_turn,
    printed_by_one,
]
