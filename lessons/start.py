# %% [markdown]
"""
# start

To use four processes or four GPUs, you start your program four times, and the four have to find
each other.

Together these processes are a job. Each of them is called a **rank**, and so is its number: 0, 1,
2, ... The **world size** is how many there are; all lessons call it n. A **group** is all ranks, or
some of them, that make calls among themselves. The **backend** is the library that moves the bytes:
gloo for the CPU, MPI, or NCCL for NVIDIA's GPUs (documented).

The word "(documented)" means that we took a statement from the documentation and have not run it.
Everything else in these lessons has run.

You will see that the ranks share nothing, a complete program to save and to start with `torchrun`,
three ways in which ranks meet and four ways to start them, and what `run`, `check` and `rank,
world_size, device` stand for in all other lessons.

    python lessons/start.py
    torchrun --nproc-per-node 4 lessons/start.py

In your copy of this repository, `make tour` installs what the lessons need and runs all of them. If
you already have torch, type `pip install -e '.[notebooks]'`.
"""

# %%
import os
import socket
import tempfile
import time
from collectives import check
from collectives.lesson import needs, run
import torch
import torch.distributed as dist

# %% [markdown]
# ## One program, n processes
#
# One program is started n times, which makes n processes. The function below runs n times, once in
# each of them. A rank that wants data of another rank has to call a function of
# `torch.distributed`; the other lessons are about these functions.
#
# How can the same program do different things? It looks at its rank: `10 * rank`, or `if rank ==
# 0:`.

# %%
visitors = []


def start(rank, world_size, device):
    x = torch.tensor([10 * rank], device=device)
    visitors.append(rank)
    dist.barrier()  # wait here until every rank has come: now all of them have appended
    # proof
    check([dist.get_rank(), dist.get_world_size()], [rank, world_size], "get_rank, get_world_size")
    check([x, visitors], [torch.tensor([10 * rank]), [rank]], "what a rank sees")
    return {"x": x, "visitors": visitors}


# %% [markdown]
# **Predict first.** Four ranks append their number to `visitors`. After the barrier all four have
# done so. How long is the list that rank 2 returns? Write the number down.

# %%
if __name__ == "__main__":
    run(start)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Its length is 1. Each process has a memory of its own, so there are four lists, as there are four
# different tensors called `x`. Rank 2 appended to its own list, and no other rank can reach that
# one. Nothing is shared: what one rank changes, no other rank sees. The picture has one row for
# each rank: four processes that make the same call. The dotted line joins the calls in which they
# wait for each other.
#
# </details>

# %% [markdown]
# ### The one rule
#
# `dist.barrier()` is a **collective**: a call that every rank of a group makes. The rule for all of
# them is: *every rank makes the same collectives, in the same order.* The most common mistake
# breaks it:
#
# ```python
# if rank == 0:
#     dist.barrier()  # the other ranks never come, so rank 0 waits
# ```
#
# Rank 0 waits for calls that do not come. If the others keep running, that can last until the time
# limit (30 minutes by default; `run` ends a step after 60 seconds). If they end, rank 0 fails
# with `Connection closed by peer`. So `if rank == 0:` may stand around a `print`, or around the
# writing of a file, but not around a collective. After the lesson all_gather,
# [order](../notebooks/mistakes/order.ipynb) shows what else may happen. If a program of yours
# hangs, put `collectives diagnose --` in front of its command: it says which rank is missing, and
# in which line.

# %% [markdown]
# ## A complete program
#
# Save this as `hello.py`:
#
# ```python
# import torch
# import torch.distributed as dist
#
#
# def main():
#     dist.init_process_group("gloo")  # meet the other ranks
#     rank, world_size = dist.get_rank(), dist.get_world_size()
#     x = torch.tensor([10.0 * rank])
#     print(f"rank {rank} of {world_size}: x = {x.tolist()}")
#     dist.barrier()  # no rank leaves before every rank is here
#     dist.destroy_process_group()
#
#
# if __name__ == "__main__":
#     main()
# ```
#
# Start it. The lines come in any order, here and below, because no process waits for another one to
# print. Two of them may even share a line: a text and its newline are written separately. torchrun
# also warns that it sets `OMP_NUM_THREADS` to 1, which is what you want for a start.
#
# ```console
# $ torchrun --nproc-per-node 4 hello.py
# rank 0 of 4: x = [0.0]
# rank 1 of 4: x = [10.0]
# rank 2 of 4: x = [20.0]
# rank 3 of 4: x = [30.0]
# ```
#
# Every program has these three parts. `init_process_group` makes the ranks meet, and makes the
# group of all ranks. Then the ranks work. `destroy_process_group` ends the group and closes the
# connections.

# %% [markdown]
# ## In the other lessons
#
# Every lesson is a row of functions with the arguments `rank, world_size, device`, such as `start`
# above. `device` is where the tensors of this rank belong: the CPU with gloo and MPI, a GPU with
# NCCL (documented).
#
# `run(function)` does what you saw here. It starts four processes (or uses those of torchrun or
# mpiexec), lets them meet, calls the function in each of them, prints what each rank returned, and
# ends them. It works in a notebook, too.
#
# The lines below `# proof` compute what every rank should have, without `torch.distributed`, and
# compare. You can skip them, and should do so until you have answered a "Predict first".
# `check(got, expected, call)` compares type, shape and every element, exactly unless it is told
# otherwise. It fails on the rank that got something else: `rank 2/4: got [1], should be [6]
# [all_reduce(SUM), int64[1], gloo]`. In your own programs, leave it out. To try what you wrote for
# a "Write it yourself", put it into a cell, and below it `run(your_function)`.
#
# `@needs(ranks=2)` above a function says that it needs at least two ranks. `STEPS` lists the
# functions of a lesson for the command `collectives run`; ignore it. A comment that begins with
# `subtle:` marks a trap. The [glossary](../docs/glossary.md) explains
# the words of all lessons in a line each.
#
# You can go on to the [next lesson](../notebooks/all_reduce.ipynb) now. The rest of this one is for
# the day when you start a program in another way than with torchrun, or on other machines.

# %% [markdown]
# ## What a rank must know
#
# To meet the others, a process needs four things: its rank, the world size, an address and a port.
# `torchrun` puts them into environment variables, and `init_process_group` reads them there. This
# table shows rank 3 of a job on two machines (nodes), with two ranks on each:
#
# | variable | what it says | rank 3 |
# |---|---|---|
# | `RANK` | the number of this process in the whole job | 3 |
# | `WORLD_SIZE` | how many processes the job has | 4 |
# | `LOCAL_RANK` | its number on this machine; it chooses the GPU | 1 |
# | `LOCAL_WORLD_SIZE` | how many processes this machine has | 2 |
# | `GROUP_RANK` | the number of this machine | 1 |
# | `MASTER_ADDR` | the machine at which the ranks meet | 10.0.0.1 |
# | `MASTER_PORT` | the port there | 29500 |
# | `TORCHELASTIC_RUN_ID` | the name of the job | the word "none" |
#
# Many tutorials say that the number of the machine is in `NODE_RANK`. torchrun does not set that
# variable.
#
# `dist.is_torchelastic_launched()` asks whether torchrun started this process: it looks for the
# last variable. `dist.is_available()` asks whether this torch was built with `torch.distributed`,
# and `dist.is_initialized()` whether this process is in a group. `@needs(ranks=4, fresh=True)`
# gives the next function four ranks that have torchrun's variables, but no group yet. Each rank
# meets the others, works (here, in one barrier), and leaves.


# %%
@needs(ranks=4, fresh=True)
def meet_by_environment(rank, world_size, device):
    before = dist.is_initialized()
    # short for init_method="env://": read the environment variables
    dist.init_process_group("gloo")
    inside, me = dist.is_initialized(), dist.get_rank()
    dist.barrier()
    dist.destroy_process_group()
    # proof
    check([before, inside, dist.is_initialized()], [False, True, False], "is_initialized")
    check(me, rank, "get_rank")
    return {"RANK": os.environ["RANK"], "get_rank": me, "before": before, "inside": inside}


# %%
if __name__ == "__main__":
    run(meet_by_environment)

# %% [markdown]
# ## Where to meet
#
# The ranks meet at a store: a small server of keys and values. Each rank writes there how it can be
# reached, and reads how the others can be reached. After that they talk to each other directly.
# torchrun brings a store. Without torchrun, `init_method` says where to make one:
#
# ```python
# dist.init_process_group("gloo", init_method="tcp://10.0.0.1:29500", rank=rank, world_size=4)
# dist.init_process_group("gloo", init_method="file:///shared/meet-17", rank=rank, world_size=4)
# ```
#
# In your own program you write the address down, as above. The functions below run on machines
# where other programs run as well, so they choose a free address on the spot. Rank 0 chooses it,
# and `told_by_rank_0` tells the others, by way of torchrun's store. You can skip this function.


# %%
def told_by_rank_0(rank, make):
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(address, port, is_master=False)
    if rank == 0:
        store.set("told", make())
    return store.get("told").decode()  # waits until the key is there


# %% [markdown]
# ### tcp://
#
# With `tcp://ADDRESS:PORT`, rank 0 starts the store there, and the other ranks connect to it. Each
# process gives its rank and the world size itself. The port must be free: between the moment when
# `free_address` finds it and the moment when rank 0 takes it, another program could take it.


# %%
def free_address():
    with socket.create_server(("127.0.0.1", 0)) as server:  # port 0: the system chooses a free one
        return f"tcp://127.0.0.1:{server.getsockname()[1]}"


@needs(ranks=4, fresh=True)
def meet_at_an_address(rank, world_size, device):
    # subtle: torchrun sets this variable, and then rank 0 starts no store
    del os.environ["TORCHELASTIC_USE_AGENT_STORE"]
    address = told_by_rank_0(rank, free_address)

    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world_size)
    met = [dist.get_rank(), dist.get_world_size()]
    dist.barrier()
    dist.destroy_process_group()
    # proof
    check(met, [rank, world_size], "init_process_group by tcp://")
    return {"get_rank": met[0], "get_world_size": met[1]}


# %%
if __name__ == "__main__":
    run(meet_at_an_address)

# %% [markdown]
# ### file://
#
# Here the store is a file, which all ranks write and read. Take a fresh name each time: the first
# rank makes the file, and the last rank that lets go of it removes it. Over several machines, the
# file must be on a disk that all of them see.


# %%
@needs(ranks=4, fresh=True)
def meet_in_a_file(rank, world_size, device):
    file = told_by_rank_0(rank, lambda: tempfile.mktemp(prefix="meet-"))  # a name that is free

    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=world_size)
    met, there = dist.get_rank(), os.path.exists(file)
    dist.barrier()
    dist.destroy_process_group()
    # proof
    check([met, there], [rank, True], "init_process_group by file://")
    while os.path.exists(file):  # if the last rank did not remove it, this step would never end
        time.sleep(0.01)
    return {"get_rank": met, "the file is there": there}


# %%
if __name__ == "__main__":
    run(meet_in_a_file)

# %% [markdown]
# ### It waits for all ranks
#
# The first three ranks call `init_process_group` immediately. The last rank waits until they are
# there. Then it writes the key "the last one" into torchrun's store, and comes as well. Each rank
# looks for that key as soon as `init_process_group` has returned.


# %%
@needs(ranks=4, fresh=True)
def init_waits_for_all(rank, world_size, device):
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(address, port, is_master=False)
    if rank < world_size - 1:
        store.set(f"rank {rank} is there", "")
    else:
        store.wait([f"rank {other} is there" for other in range(world_size - 1)])
        store.set("the last one", "")

    dist.init_process_group("gloo")
    found = store.check(["the last one"])
    dist.barrier()
    dist.destroy_process_group()
    check(found, True, "init_process_group waits for the last rank")  # proof
    return {"finds the key": found}


# %% [markdown]
# **Predict first.** How many of the four ranks find the key? Write the number down.

# %%
if __name__ == "__main__":
    run(init_waits_for_all)

# %% [markdown]
# <details><summary>Answer</summary>
#
# All four. On gloo, `init_process_group` connects every rank with every other, so it cannot return
# before the last one has come. NCCL connects the ranks at the first collective, or in
# `init_process_group` if you pass `device_id` (documented).
#
# </details>

# %% [markdown]
# ## Four ways to start
#
# | | who tells each process its rank | several machines |
# |---|---|---|
# | `torchrun` | the environment variables | yes |
# | `torch.multiprocessing.spawn` | the first argument of your function | no |
# | `multiprocessing.Process` | you, in the arguments | no |
# | `mpiexec` | MPI | yes |
#
# **torchrun** is what most programs use, and what you saw above. If one rank fails, it ends the
# others.
#
# **spawn** needs no launcher: the program starts its ranks itself. It calls the function with 0, 1,
# ... as its first argument, waits for all of them, and raises an error if one of them fails. Save
# this as `spawned.py`:
#
# ```python
# import socket
#
# import torch
# import torch.distributed as dist
# import torch.multiprocessing as mp
#
#
# def main(rank, world_size, port):
#     address = f"tcp://127.0.0.1:{port}"  # rank 0 starts the store there
#     dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world_size)
#     x = torch.tensor([10.0 * rank])
#     print(f"rank {rank} of {world_size}: x = {x.tolist()}")
#     dist.barrier()
#     dist.destroy_process_group()
#
#
# if __name__ == "__main__":
#     with socket.create_server(("127.0.0.1", 0)) as server:
#         port = server.getsockname()[1]  # one that is free
#     mp.spawn(main, args=(2, port), nprocs=2)  # calls main(0, 2, port) and main(1, 2, port)
# ```
#
# Start it:
#
# ```console
# $ python spawned.py
# rank 0 of 2: x = [0.0]
# rank 1 of 2: x = [10.0]
# ```
#
# **Process** is Python's own way, and leaves more to you: you number the ranks, wait for them with
# `join`, and look for failures. This program meets in a file. The folder is removed with all that
# is in it when the ranks have ended. Save this as `processes.py`:
#
# ```python
# import multiprocessing
# import tempfile
#
# import torch
# import torch.distributed as dist
#
#
# def main(rank, world_size, file):
#     meeting = f"file://{file}"
#     dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world_size)
#     x = torch.tensor([10.0 * rank])
#     print(f"rank {rank} of {world_size}: x = {x.tolist()}")
#     dist.barrier()
#     dist.destroy_process_group()
#
#
# if __name__ == "__main__":
#     context = multiprocessing.get_context("spawn")  # new processes, not copies of this one
#     with tempfile.TemporaryDirectory() as folder:
#         arguments = [(rank, 2, f"{folder}/meet") for rank in range(2)]
#         ranks = [context.Process(target=main, args=one) for one in arguments]
#         for process in ranks:
#             process.start()
#         for process in ranks:
#             process.join()
# ```
#
# Start it:
#
# ```console
# $ python processes.py
# rank 0 of 2: x = [0.0]
# rank 1 of 2: x = [10.0]
# ```
#
# **mpiexec** is the launcher of MPI, and common on clusters. MPI tells each process who it is and
# connects them, so there is no address. The backend "mpi" is one that this package brings: `pip
# install -e '.[mpi]'`. Save this as `mpi.py`:
#
# ```python
# import collectives.backends.register  # makes "mpi" known to torch
# import torch
# import torch.distributed as dist
#
#
# def main():
#     dist.init_process_group("mpi", init_method="mpi://")
#     rank, world_size = dist.get_rank(), dist.get_world_size()
#     x = torch.tensor([10.0 * rank])
#     print(f"rank {rank} of {world_size}: x = {x.tolist()}")
#     dist.barrier()
#     dist.destroy_process_group()
#
#
# if __name__ == "__main__":
#     main()
# ```
#
# Start it:
#
# ```console
# $ mpiexec -n 4 python mpi.py
# rank 0 of 4: x = [0.0]
# rank 1 of 4: x = [10.0]
# rank 2 of 4: x = [20.0]
# rank 3 of 4: x = [30.0]
# ```
#
# Two names sound alike. `torch.multiprocessing` starts processes on one machine and can share the
# memory of a tensor among them; it numbers the processes, but does not connect them.
# `torch.distributed` connects processes that are running already, on one machine or on many, and
# copies data from one to another.

# %% [markdown]
# ## Backend and device
#
# | argument of `init_process_group` | what it is for |
# |---|---|
# | `backend` | "gloo", "nccl" or "mpi"; without it: gloo and nccl, by device (documented) |
# | `init_method` | where to meet: "env://", "tcp://...", "file://..." |
# | `rank`, `world_size` | for tcp:// and file://; env:// reads them |
# | `store` | a store of your own, in place of `init_method` |
# | `timeout` | how long a call waits for the other ranks: 30 minutes, with NCCL 10 (documented) |
# | `device_id` | the GPU of this rank, which lets NCCL connect at once (documented) |
#
# Which backend? Use gloo for tensors on the CPU: it comes with torch and runs everywhere. Use NCCL
# for tensors on NVIDIA's GPUs (documented). Use MPI where the cluster provides a fast one.
#
# Each rank uses a GPU of its own, and selects it before it does anything else on a GPU
# (documented): `torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))`. The number is `LOCAL_RANK`
# and not `RANK`: every machine counts its GPUs from 0. `CUDA_VISIBLE_DEVICES=2,3` hides all GPUs of
# a machine but two, and the program counts these as 0 and 1 (documented).

# %% [markdown]
# ## Pitfalls
#
# - A rank may leave `init_process_group` while two others still connect to each other. If it ends
#   its group then, another rank fails with `Gloo connectFullMesh failed with [...] Connection
#   closed by peer`. We saw it in 1 of 30 starts. So a program ends with a collective that needs all
#   ranks, or with `dist.barrier()`, and only then calls `destroy_process_group`.
# - Do not leave out `destroy_process_group`: it also ends gloo's threads. A thread that is still at
#   work when Python ends can abort the process, with `terminate called without an active exception`
#   and exit status -6. We saw it in 4 of 28 programs on a busy machine. In torch 2.13 the same can
#   happen with it, if the program makes its first optimizer in the group: that imports
#   `torch.distributed.nn`, whose functions keep the group alive. Import it before
#   `init_process_group`.
# - `destroy_process_group` belongs in the ranks. A parent that starts ranks never joined the group,
#   so it has none to destroy:
#
#   ```console
#   $ python -c "import torch.distributed as dist; dist.destroy_process_group()"
#   ...
#   AssertionError: Process group cannot be None
#   ```
#
# - Under torchrun, do not meet by `tcp://` at a port of your own. In torch 2.13 every rank then
#   waits for a store that nobody starts, until the time limit
#   ([pytorch#192113](https://github.com/pytorch/pytorch/pull/192113)). Use `env://`.
# - If a job is killed, its file for `file://` may stay. A job that takes the same name again reads
#   the old addresses.
# - `init_process_group` is not thread-safe (documented). Call it once, in the main thread.
# - In a notebook, `spawn` cannot call a function that you wrote in a cell: the new process has no
#   such cell. `run` and `collectives.launch` can.
# - Two jobs on one port, `LOCAL_RANK` in place of `RANK`, a missing variable:
#   [start_up](../notebooks/mistakes/start_up.ipynb) shows what you see then, and the cure.

# %% [markdown]
# ## Write it yourself
#
# Change `hello.py` so that it runs under torchrun and also alone, with `python hello.py`, as rank 0
# of 1. Ask `dist.is_torchelastic_launched()`, and meet in a file if the answer is no.

# %%
STEPS = [start, meet_by_environment, meet_at_an_address, meet_in_a_file, init_waits_for_all]

# %% [markdown]
# ## Read on
#
# - F. Darema, *The SPMD Model: Past, Present and Future* (2001): the idea of one program on many
#   processes, by its author.
# - S. Li and others, [*PyTorch Distributed*](https://arxiv.org/abs/2006.15704) (2020): how torch
#   builds training on these groups.
# - torch's own
#   [rendezvous.py](https://github.com/pytorch/pytorch/blob/main/torch/distributed/rendezvous.py):
#   env://, tcp:// and file://, in about 300 lines of Python.
#
# In PyTorch's documentation: [torchrun](https://docs.pytorch.org/docs/stable/elastic/run.html) and
#
# - [`init_process_group`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.init_process_group)
# - [`get_rank`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.get_rank)
# - [`get_world_size`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.get_world_size)
# - [`is_available`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.is_available)
# - [`is_initialized`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.is_initialized)
# - [`is_torchelastic_launched`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.is_torchelastic_launched)
# - [`TCPStore`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.TCPStore)
# - [`barrier`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.barrier)
#
# Next lesson: [all_reduce](../notebooks/all_reduce.ipynb), the call that trains most models.
