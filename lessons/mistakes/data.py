# %% [markdown]
"""
# data

The collectives are right, and what the ranks put in, or what they print, is not.

You will see four ranks do the work of one, and a log without the lines that were printed. Each mistake runs in ranks of its own
for a second or two, and is then cured.

    python lessons/mistakes/data.py
    torchrun --nproc-per-node 4 lessons/mistakes/data.py

To run it, clone the repository and type `make tour`, or `pip install -e .` where you already have torch.
"""

# %%
from collectives import check
from collectives.lesson import cure, mistake, run
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
import torch
import torch.distributed as dist

# %% [markdown]
# ## The same seed on every rank
#
# **Symptom.** Nothing at all. The model is a little worse than it should be.


# %%
@mistake("wrong numbers", ranks=4)
def the_same_seed(rank, world_size, device):
    torch.manual_seed(0)
    flips = torch.randint(2, (16,), device=device)  # which images are mirrored
    everyone = [torch.zeros_like(flips) for _ in range(world_size)]
    dist.all_gather(everyone, flips)
    check(len({tuple(one.tolist()) for one in everyone}), 4, "different draws")


# %%
if __name__ == "__main__":
    run(the_same_seed)

# %% [markdown]
# **Cause.** A seed makes runs repeatable, and ranks equal. The batches differ, but every rank mirrors, crops and drops out alike.
#
# **Cure.** Seed with the rank, for what is to differ. The initial weights are to be the same: seed alike for them, or broadcast
# them, as DDP does.
#
# **Early.** Gather one random number of every rank, once, and look. This goes wrong in silence on any backend.


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
    run(a_seed_of_its_own)

# %% [markdown]
# ## Printing in turn
#
# **Symptom.** The ranks take turns to print, with a barrier after each. The log is empty; later its lines come in any order.


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
                print(f"rank {rank}", file=log)
            dist.barrier()
        lines = path.read_text().splitlines()
        dist.barrier()  # nobody closes the log before all have looked
    check(lines, ["rank 0", "rank 1", "rank 2"], "print, barrier")


# %%
if __name__ == "__main__":
    run(printing_in_turn)

# %% [markdown]
# **Cause.** A barrier orders the ranks, not what they have in their buffers: `print` into a file or a pipe writes only when the
# buffer is full or the program ends. And behind torchrun the lines of all ranks pass through yet another process.
#
# **Cure.** Bring the lines to one rank, and let it print. (`flush=True` cures the buffer, not the pipe.)
#
# **Early.** If the order of lines matters, put rank and time into each line; then any order will do.


# %%
@cure(ranks=3)
def printed_by_one(rank, world_size, device):
    lines = [None] * world_size if rank == 0 else None
    dist.gather_object(f"rank {rank}", lines, dst=0)
    with shared_log(rank) as path:
        if rank == 0:
            path.write_text("\n".join(lines))
        dist.barrier()  # rank 0 has closed the log
        lines = path.read_text().splitlines()
    check(lines, ["rank 0", "rank 1", "rank 2"], "gather_object, print")
    return {"log": lines}


# %%
if __name__ == "__main__":
    run(printed_by_one)

# %%
STEPS = [
    the_same_seed,
    a_seed_of_its_own,
    printing_in_turn,
    printed_by_one,
]
