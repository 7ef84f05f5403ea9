# %% [markdown]
"""
# start_up

Before the first collective the ranks have to find each other. Three programs whose ranks do not.

You will see who waits for whom when two jobs share a port, when two ranks take one number, and when nobody said where to meet.
Each mistake runs in ranks of its own for a second or two, and is then cured. They start as torchrun starts them: with its
environment variables, and without a process group.

    python lessons/mistakes/start_up.py
    torchrun --nproc-per-node 4 lessons/mistakes/start_up.py

To run it, clone the repository and type `make tour`, or `pip install -e .` where you already have torch.
"""

# %%
from collectives import check
from collectives.lesson import cure, mistake, run
import os
import torch
import torch.distributed as dist

# %% [markdown]
# ## Two jobs on one port
#
# **Symptom.** Rank 0 cannot listen. Rank 1 finds somebody listening, the other job, and waits for its own rank 0 there.


# %%
@mistake("raises an error", ranks=2, fresh=True)
def two_jobs_on_one_port(rank, world_size, device):
    del os.environ["TORCHELASTIC_USE_AGENT_STORE"]  # started by hand: rank 0 itself is to listen on MASTER_PORT
    dist.init_process_group("gloo")  # but another job is there already: say that it is 29500, as in every tutorial
    x = torch.tensor([rank], device=device)
    dist.all_reduce(x)
    check(x, torch.tensor([1]), "all_reduce(SUM)")


# %%
if __name__ == "__main__":
    run(two_jobs_on_one_port)

# %% [markdown]
# **Cause.** A port belongs to one process. The second job on a machine must take another.
#
# **Cure.** Let the launcher choose: `torchrun --standalone` takes a free port and tells all ranks. A program that calls
# `init_process_group` without an address follows.
#
# **Early.** Search your scripts for 29500. "Address already in use" may also mean that yesterday's job is still alive.


# %%
@cure(ranks=2, fresh=True)
def port_of_the_launcher(rank, world_size, device):
    dist.init_process_group("gloo")
    x = torch.tensor([rank], device=device)
    dist.all_reduce(x)
    check(x, torch.tensor([1]), "all_reduce(SUM)")
    dist.destroy_process_group()
    return {"x": x}


# %%
if __name__ == "__main__":
    run(port_of_the_launcher)

# %% [markdown]
# ## LOCAL_RANK for RANK
#
# **Symptom.** It always worked. On the first day with two machines, everybody waits at start-up.


# %%
@mistake("hangs", ranks=4, fresh=True)
def local_rank_for_rank(rank, world_size, device):
    os.environ["LOCAL_RANK"] = str(rank % 2)  # as on two machines with two ranks each
    me = int(os.environ["LOCAL_RANK"])
    dist.init_process_group("gloo", rank=me, world_size=world_size)
    check(dist.get_rank(), rank, "rank")


# %%
if __name__ == "__main__":
    run(local_rank_for_rank)

# %% [markdown]
# **Cause.** `LOCAL_RANK` counts on each machine anew. Two ranks 0 and two ranks 1 wait for ranks 2 and 3.
#
# **Cure.** `RANK` is the number in the world; `LOCAL_RANK` is for choosing the GPU. Say nothing, and torch reads the right one.
#
# **Early.** On one machine the two are equal. `torchrun --nnodes 2` with two terminals on one machine is enough to tell.


# %%
@cure(ranks=4, fresh=True)
def rank_for_rank(rank, world_size, device):
    os.environ["LOCAL_RANK"] = str(rank % 2)
    dist.init_process_group("gloo")
    check(dist.get_rank(), rank, "rank")
    x = torch.tensor([rank], device=device)
    dist.all_reduce(x)
    check(x, torch.tensor([6]), "all_reduce(SUM)")
    dist.destroy_process_group()
    return {"RANK": rank, "LOCAL_RANK": int(os.environ["LOCAL_RANK"])}


# %%
if __name__ == "__main__":
    run(rank_for_rank)

# %% [markdown]
# ## A variable is missing
#
# **Symptom.** An error, at once, on every rank, and it names the variable. If only all mistakes were like this.


# %%
@mistake("raises an error", ranks=2, fresh=True)
def variable_missing(rank, world_size, device):
    del os.environ["MASTER_ADDR"]  # started by hand, and nobody set it
    dist.init_process_group("gloo")
    check(dist.get_rank(), rank, "rank")


# %%
if __name__ == "__main__":
    run(variable_missing)

# %% [markdown]
# **Cause.** `python train.py` sets none of RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. torchrun sets all four.
#
# **Cure.** Start with torchrun. A program that shall also run alone can ask `dist.is_torchelastic_launched()`.
#
# **Early.** Ask in the first line of `main()`, before the model is loaded.


# %%
@cure(ranks=2, fresh=True)
def ask_for_the_variables(rank, world_size, device):
    wanted = ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"]
    missing = [name for name in wanted if name not in os.environ]
    check(missing, [], "torchrun sets them all")
    dist.init_process_group("gloo")
    check(dist.get_rank(), rank, "rank")
    dist.barrier()
    dist.destroy_process_group()
    return {"missing": missing}


# %%
if __name__ == "__main__":
    run(ask_for_the_variables)

# %%
STEPS = [
    two_jobs_on_one_port,
    port_of_the_launcher,
    local_rank_for_rank,
    rank_for_rank,
    variable_missing,
    ask_for_the_variables,
]
