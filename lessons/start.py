# %% [markdown]
"""
# start

One program becomes several processes that find each other. To use four processes or four GPUs, you
start your program four times.

    python lessons/start.py
    torchrun --nproc-per-node 4 lessons/start.py
"""

# %%
import os
import time
from collectives import check, needs, run
import torch
import torch.distributed as dist

# %% [markdown]
# ## A complete program
#
# Save this as `hello.py`:
#
# ```python
# import torch
# import torch.distributed as dist
#
# dist.init_process_group("gloo")  # find the other processes
# rank, world_size = dist.get_rank(), dist.get_world_size()
# x = torch.tensor([10**rank])
# dist.all_reduce(x)  # add up the x of all processes
# print(f"rank {rank} of {world_size}: x = {x.tolist()}")
# dist.destroy_process_group()
# ```
#
# `torchrun` starts it four times:
#
# ```console
# $ torchrun --nproc-per-node 4 hello.py
# rank 0 of 4: x = [1111]
# rank 1 of 4: x = [1111]
# rank 2 of 4: x = [1111]
# rank 3 of 4: x = [1111]
# ```
#
# On your screen the lines may have another order or share a line: no process waits for another one
# to print. torchrun also warns that it sets `OMP_NUM_THREADS` to 1, which is fine.
#
# `python hello.py` starts one process, which cannot find the others. It raises
# `ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable
# RANK expected, but not set`.
#
# Each process is called a [rank](../docs/glossary.md#rank), and so is its number: 0, 1, 2, 3. The
# [world size](../docs/glossary.md#world-size) is the number of ranks; the lessons also call it n. A
# [group](../docs/glossary.md#group) is all ranks, or some of them, that make calls together. The
# [backend](../docs/glossary.md#backend) is the library that moves the data: here gloo, which needs
# no GPU.
#
# `init_process_group` connects the ranks, and makes the group of all of them. Then the ranks make
# calls, such as `all_reduce`, the next lesson. `destroy_process_group` closes the connections. All
# ranks run the same lines, but each has its own rank, so `10**rank` differs, and code below
# `if rank == 0:` runs on rank 0 only.

# %% [markdown]
# ## run and check
#
# A step of a lesson is a function that every rank calls. This step does what `hello.py` does:


# %%
def start(rank, world_size, device):
    x = torch.tensor([10**rank], device=device)
    dist.all_reduce(x)
    # proof
    check([dist.get_rank(), dist.get_world_size()], [rank, world_size], "get_rank, get_world_size")
    check(x, torch.tensor([sum(10**r for r in range(world_size))]), "all_reduce")
    return {"x": x}


# %%
if __name__ == "__main__":
    run(start)

# %% [markdown]
# `run(step)` starts four processes, or uses those of torchrun or mpiexec. It calls
# `init_process_group`, so the step does not. Then it calls the step in each rank, prints what each
# one returned, and ends the processes, after 60 seconds at the latest. `device` is where the rank's
# tensors belong: with gloo, the CPU.
#
# `check(got, expected, call)` compares type, shape and every element, and fails if they differ. The
# expected value is computed without `torch.distributed`. `proved on all 4 ranks` means that every
# `check` passed on every rank. Your own programs need neither `run` nor `check`.
#
# The lines below `# proof` hold the answers to "Predict first": predict before you read them.

# %% [markdown]
# ## Nothing is shared
#
# `dist.barrier()` returns on a rank only when every rank has called it.

# %% [markdown]
# **Predict first.** Four ranks append their number to `visitors`. Which list does rank 2 return?

# %%
visitors = []


def no_shared_memory(rank, world_size, device):
    visitors.append(rank)
    dist.barrier()  # now all ranks have appended
    check(visitors, [rank], "what a rank sees")  # proof
    return {"visitors": visitors}


# %%
if __name__ == "__main__":
    run(no_shared_memory)

# %% [markdown]
# <details><summary>Answer</summary>
#
# `[2]`. Each process has its own memory, so there are four lists. A rank gets the data of another
# one only by a call of `torch.distributed`.
#
# </details>

# %% [markdown]
# ### The one rule
#
# `all_reduce` and `barrier` are [collectives](../docs/glossary.md#collective): calls that every
# rank of a group makes. *Every rank makes the same collectives, in the same order.* The most common
# mistake breaks this rule:
#
# ```python
# if rank == 0:
#     dist.barrier()  # no other rank calls it, so rank 0 waits
# ```
#
# If the other ranks keep running, rank 0 waits until gloo's time limit, 30 minutes. If they end, it
# fails with `Connection closed by peer`. Use `if rank == 0:` for a `print` or to write a file, but
# not for a collective. If a program of yours hangs, put `collectives diagnose --` in front of its
# command: it says which ranks wait, and in which line.

# %% [markdown]
# ## Who is who
#
# torchrun tells each process who it is, in environment variables, and `init_process_group` reads
# them. This is rank 3 of a job on two machines, with two ranks on each:
#
# | variable | what it says | rank 3 |
# |---|---|---|
# | `RANK` | the number of this process in the job | 3 |
# | `WORLD_SIZE` | how many processes the job has | 4 |
# | `LOCAL_RANK` | the number of this process on its machine | 1 |
# | `MASTER_ADDR` | the machine on which the ranks find each other | 10.0.0.1 |
# | `MASTER_PORT` | the port there | 29500 |
#
# `@needs(ranks=4, fresh=True)` tells `run` to start four ranks with these variables, but not to
# connect them: this step calls `init_process_group` itself.


# %%
@needs(ranks=4, fresh=True)
def meet_by_environment(rank, world_size, device):
    before = dist.is_initialized()  # is there a group?
    dist.init_process_group("gloo")
    inside, me = dist.is_initialized(), dist.get_rank()
    dist.barrier()
    dist.destroy_process_group()
    # proof
    check([before, inside, dist.is_initialized()], [False, True, False], "is_initialized")
    check(me, int(os.environ["RANK"]), "get_rank")
    return {"RANK": os.environ["RANK"], "get_rank": me, "before": before, "inside": inside}


# %%
if __name__ == "__main__":
    run(meet_by_environment)

# %% [markdown]
# ### It waits for all ranks
#
# Can rank 0 return from `init_process_group` before rank 3 has called it? Here rank 3 calls last.
# Just before its call it writes a key into torchrun's [store](../docs/glossary.md#store). Each rank
# looks for the key when its own call has returned.

# %% [markdown]
# **Predict first.** Which of the four ranks find the key?


# %%
@needs(ranks=4, fresh=True)
def init_waits_for_all(rank, world_size, device):
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(address, port, is_master=False)
    if rank == 3:
        time.sleep(1)  # the others call init_process_group first
        store.set("rank 3 calls now", "")

    dist.init_process_group("gloo")
    found = store.check(["rank 3 calls now"])
    dist.barrier()
    dist.destroy_process_group()
    check(found, True, "init_process_group waits for rank 3")  # proof
    return {"finds the key": found}


# %%
if __name__ == "__main__":
    run(init_waits_for_all)

# %% [markdown]
# <details><summary>Answer</summary>
#
# All of them. So rank 0 cannot return before rank 3 has called: on gloo, `init_process_group`
# connects each rank with every other.
#
# </details>

# %% [markdown]
# ## How the lessons are built
#
# The numbers show where data come from. In calls that move data, the tens name the rank, and the
# ones the position, counted from 1. In calls that add, each rank has its own digit.
#
# | | rank 0 | rank 1 | rank 2 | rank 3 |
# |---|---|---|---|---|
# | calls that move | 1, 2 | 11, 12 | 21, 22 | 31, 32 |
# | calls that add | 1, 2 | 10, 20 | 100, 200 | 1000, 2000 |
#
# `# subtle:` marks a trap. The [glossary](../docs/glossary.md) explains the words. You can skip
# "The cost" and "On GPUs" at first. The items of "On GPUs" have not been run: each names its
# source.

# %% [markdown]
# ## Pitfalls
#
# - A rank may return from `init_process_group` while two others still connect. If it ends its group
#   then, another rank fails with `Connection closed by peer`. So make a collective that needs all
#   ranks, such as `dist.barrier()`, before `destroy_process_group`.
# - Two jobs on one port, or a missing variable: [start_up](../notebooks/mistakes/start_up.ipynb)
#   shows what happens, and the cure.

# %% [markdown]
# ## On GPUs
#
# - Use the backend "nccl", and one process for each GPU (`torch/distributed/run.py`: "each
#   distributed process will be operating on a single GPU").
# - Select the GPU by `LOCAL_RANK`, because every machine counts its GPUs from 0
#   (`torch/distributed/run.py`: "from *GPU 0 to GPU (nproc_per_node - 1)*").
# - `CUDA_VISIBLE_DEVICES=2,3 torchrun --nproc-per-node 2 hello.py` shows the job [only these two
#   GPUs](https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html),
#   and the ranks count them as 0 and 1. So two jobs can share a machine.
# - NCCL connects the ranks at their first collective, or in `init_process_group` with `device_id`
#   (`torch/distributed/distributed_c10d.py`: "the communicator is immediately formed"). From torch
#   2.15 on, "nccl" is another engine: [Which NCCL?](../docs/which-nccl.md)

# %% [markdown]
# ## Change and try
#
# Make the change, and run its cell and the next one, or run the file again. Then undo it.
#
# 1. In `start`, change `10**rank` to `2 * rank`. Which sum does rank 0 get?
#
#    <details><summary>Answer</summary>
#
#    `rank 0/4: got [12], should be [1111] [all_reduce, int64[1], gloo]`: 0 + 2 + 4 + 6.
#
#    </details>
#
# 2. In `start`, change `dist.all_reduce(x)` to `if rank != 3: dist.all_reduce(x)`. Which check
#    fails?
#
#    <details><summary>Answer</summary>
#
#    `rank 3/4: got [1000], should be [1111] [all_reduce, int64[1], gloo]`. The others wait in
#    `all_reduce` until rank 3 ends.
#
#    </details>

# %%
STEPS = [start, no_shared_memory, meet_by_environment, init_waits_for_all]

# %% [markdown]
# ## Read on
#
# - [launching](../notebooks/launching.ipynb): other ways to start and connect ranks. The course
#   does not need it.
#
# In PyTorch's documentation: [torchrun](https://docs.pytorch.org/docs/stable/elastic/run.html) and
#
# - [`init_process_group`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.init_process_group)
# - [`get_rank`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.get_rank)
# - [`get_world_size`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.get_world_size)
#
# Next lesson: [all_reduce](../notebooks/all_reduce.ipynb), the call that trains most models.
