# %% [markdown]
"""
# launching: start ranks with torchrun, spawn or plain python

You can also start ranks without torchrun, and let them meet at an address or in a file.

torchrun starts the processes, and tells each of them who it is and where to find the others. Sooner
or later you read a program that does both by itself, or you write one, because your test or your
notebook has no torchrun. The course does not need this lesson, so come back when you meet such a
program.

At the end you know the store through which ranks find each other, three ways to name it, four ways
to start ranks, and how to end a group without a crash.

    python lessons/launching.py
    torchrun --nproc-per-node 4 lessons/launching.py
"""

# %%
import os
import socket
import tempfile
import time
from pathlib import Path
from collectives import check, needs, run
import torch.distributed as dist

# %% [markdown]
# ## The store
#
# When a rank starts, it does not know where the other ranks are. So they find each other through a
# [store](../docs/glossary.md#store), a small server of keys and values. In `init_process_group`,
# each rank writes its own address there and reads the addresses of the other ranks. From then on
# the ranks talk to each other directly.
#
# torchrun starts the store before the ranks, and puts its address into `MASTER_ADDR` and
# `MASTER_PORT`, so your program can use it, too. Here each rank writes one key and reads the key of
# its right neighbour, before there is any group.


# %%
def torchrun_store():
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.TCPStore(address, port, is_master=False)  # not the server: connect to it


@needs(ranks=4, fresh=True)
def launching(rank, world_size, device):
    store = torchrun_store()
    store.set(f"rank {rank}", f"greetings from {rank}")
    right = (rank + 1) % world_size
    read = store.get(f"rank {right}").decode()  # waits until the key is there
    check(read, f"greetings from {right}", "store.get")  # proof
    return {"read": read}


# %%
if __name__ == "__main__":
    run(launching)

# %% [markdown]
# ## Who is who
#
# Four copies of one program are running, so how does a copy learn that it is rank 3? torchrun
# writes the answer into environment variables, and `init_process_group` reads them. This is what
# rank 3 finds in a job on two machines with two ranks on each:
#
# | variable | what it says | rank 3 |
# |---|---|---|
# | `RANK` | the number of this process in the job | 3 |
# | `WORLD_SIZE` | how many processes the job has | 4 |
# | `LOCAL_RANK` | the number of this process on its machine | 1 |
# | `MASTER_ADDR` | the machine on which the ranks find each other | 10.0.0.1 |
# | `MASTER_PORT` | the port there | 29500 |
# | `LOCAL_WORLD_SIZE` | how many ranks this machine has | 2 |
# | `GROUP_RANK` | the number of this machine | 1 |
# | `TORCHELASTIC_RUN_ID` | the name of the job | the word "none" |
#
# Many programs look for the number of the machine in `NODE_RANK`. torchrun does not set that
# variable, so use `GROUP_RANK`.
#
# `dist.is_torchelastic_launched()` says whether torchrun started this process, because it looks for
# the last variable of the table. `dist.is_available()` says whether this torch was built with
# `torch.distributed`. If it was not, the module has no other function
# (`torch/distributed/__init__.py`: "``torch.distributed`` does not expose any other APIs").

# %% [markdown]
# This step makes the group itself. So `@needs(ranks=4, fresh=True)` asks `run` for four ranks that
# have these variables and are not connected yet.


# %%
@needs(ranks=4, fresh=True)
def meet_by_environment(rank, world_size, device):
    before = dist.is_initialized()  # is there a group?
    try:
        dist.destroy_process_group()  # as in a parent, which has none
        error = "no error"
    except AssertionError as no_group:
        error = type(no_group).__name__
    dist.init_process_group("gloo")
    inside, me = dist.is_initialized(), dist.get_rank()
    dist.barrier()
    dist.destroy_process_group()
    # proof
    check([before, inside, dist.is_initialized()], [False, True, False], "is_initialized")
    check(me, int(os.environ["RANK"]), "get_rank")
    check(error, "AssertionError", "destroy_process_group without a group")
    return {"RANK": os.environ["RANK"], "get_rank": me, "before": before, "inside": inside}


# %%
if __name__ == "__main__":
    run(meet_by_environment)

# %% [markdown]
# ### It waits for all ranks
#
# Can rank 0 return from `init_process_group` before rank 3 has called it? To find out, we let rank
# 3 call last. Just before its call it writes a key into torchrun's store, and each rank looks for
# this key when its own call has returned.

# %% [markdown]
# **Predict first.** Which of the four ranks find the key?


# %%
@needs(ranks=4, fresh=True)
def init_waits_for_all(rank, world_size, device):
    store = torchrun_store()
    if rank == 3:
        time.sleep(1)  # the other ranks call init_process_group first
        store.set("rank 3 calls now", "")

    dist.init_process_group("gloo")
    found = store.check(["rank 3 calls now"])
    dist.barrier()
    dist.destroy_process_group()
    check(found, True, "init_process_group waits for rank 3")  # proof
    return {"finds the key": found}


# %%
if __name__ == "__main__":
    run(init_waits_for_all, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# All of them do. So no rank returns before rank 3 has made its call, because on gloo
# `init_process_group` connects each rank with every other. It is not like `touch`, as one reads:
# the first rank does not make a group that the others find later.
#
# </details>

# %% [markdown]
# ## tcp://
#
# Without torchrun there is no store yet, so `init_method` says where one is started. With
# `tcp://ADDRESS:PORT`, rank 0 starts it at that address, and the other ranks connect to it. Each
# process passes its rank and the world size, because there are no variables to read them from:
#
# ```python
# dist.init_process_group("gloo", init_method="tcp://10.0.0.1:29500", rank=rank, world_size=4)
# ```
#
# In your own program you write the address down. On your machine that port may be taken, so in this
# step rank 0 looks for a free one, and passes it to the other ranks through torchrun's store.


# %%
def told_by_rank_0(rank, make):
    store = torchrun_store()
    if rank == 0:
        store.set("told", make())
    return store.get("told").decode()


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
# ## file://
#
# The store can also be a file that all ranks write and read. If the ranks are on several machines,
# it must be on a shared disk.
#
# The first rank makes the file, and the last one to end its group removes it. But the file stays if
# the job is killed, or if two ranks end their groups at the same moment, and the next job would
# read old addresses from it. So take a new name each time, and remove the file yourself.


# %%
@needs(ranks=4, fresh=True)
def meet_in_a_file(rank, world_size, device):
    file = told_by_rank_0(rank, lambda: tempfile.mktemp(prefix="meet-"))  # a name that is free

    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=world_size)
    met, there = dist.get_rank(), os.path.exists(file)
    dist.barrier()
    dist.destroy_process_group()
    Path(file).unlink(missing_ok=True)
    # proof
    check([met, there], [rank, True], "init_process_group by file://")
    return {"get_rank": met, "the file is there": there}


# %%
if __name__ == "__main__":
    run(meet_in_a_file)

# %% [markdown]
# ## Four ways to start
#
# Until now `run` has started the ranks. Your own program can start them in four ways, which differ
# in how a process learns its rank:
#
# | | who tells each process its rank | where you start it |
# |---|---|---|
# | `torchrun` | the environment variables | on each machine |
# | `mp.spawn` | the first argument of your function | on each machine, and you add an offset |
# | `mp.Process` | you, in the arguments | on each machine, and you add an offset |
# | `mpiexec` | MPI | once |
#
# Here `mp` is `torch.multiprocessing`. **torchrun** is the common way. If one rank fails, it ends
# the others.
#
# **spawn** needs no launcher, because your program starts the ranks itself. It calls the function
# with 0, 1, ... as its first argument, waits for all ranks, and raises an error if one of them
# fails. Save this as `spawned.py`:
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
#     x = torch.tensor([10**rank])
#     dist.all_reduce(x)
#     print(f"rank {rank} of {world_size}: x = {x.tolist()}")
#     dist.destroy_process_group()
#
#
# def free_port():
#     with socket.create_server(("127.0.0.1", 0)) as server:
#         return server.getsockname()[1]
#
#
# if __name__ == "__main__":
#     mp.spawn(main, args=(2, free_port()), nprocs=2)  # calls main(0, 2, port), main(1, 2, port)
# ```
#
# Start it:
#
# ```console
# $ python spawned.py
# rank 0 of 2: x = [11]
# rank 1 of 2: x = [11]
# ```
#
# [spawn.py](../examples/spawn.py) does the same on several machines: there each machine counts its
# ranks from an offset.
#
# **Process** is Python's own way, and it leaves all the work to you: you number the ranks, wait for
# them, and look for failures. Save this as `processes.py`:
#
# ```python
# import multiprocessing
#
# from spawned import free_port, main
#
# if __name__ == "__main__":
#     context = multiprocessing.get_context("spawn")  # new processes, not copies of this one
#     port = free_port()
#     ranks = [context.Process(target=main, args=(rank, 2, port)) for rank in range(2)]
#     for process in ranks:
#         process.start()
#     for process in ranks:
#         process.join()
# ```
#
# Start it:
#
# ```console
# $ python processes.py
# rank 0 of 2: x = [11]
# rank 1 of 2: x = [11]
# ```
#
# **mpiexec** is the launcher of MPI. MPI tells each process who it is and connects the processes as
# well, which is why this program has no address. It needs the backend "mpi", which the package of
# this course brings: `pip install -e '.[mpi]'`. Save it as `mpi.py`:
#
# ```python
# import collectives.backends.register  # makes "mpi" known to torch
# import torch
# import torch.distributed as dist
#
# dist.init_process_group("mpi", init_method="mpi://")
# rank, world_size = dist.get_rank(), dist.get_world_size()
# x = torch.tensor([10**rank])
# dist.all_reduce(x)
# print(f"rank {rank} of {world_size}: x = {x.tolist()}")
# dist.destroy_process_group()
# ```
#
# Start it:
#
# ```console
# $ mpiexec -n 4 python mpi.py
# rank 0 of 4: x = [1111]
# rank 1 of 4: x = [1111]
# rank 2 of 4: x = [1111]
# rank 3 of 4: x = [1111]
# ```
#
# Do not leave out `init_method="mpi://"`. Without it torch does not ask MPI, whatever rank and size
# you give it, and you get `ValueError: Error initializing torch.distributed using env://
# rendezvous: environment variable MASTER_ADDR expected, but not set`.

# %% [markdown]
# ## The end of the group
#
# `destroy_process_group` also ends gloo's threads. If you leave it out, a thread that still works
# when Python ends can abort the process, with `terminate called without an active exception`. An
# early `sys.exit` is such an end, so call it before that, too.
#
# In torch 2.13 this can happen even if you call it. The first optimizer that is created after
# `init_process_group` imports `torch.distributed.nn`, whose functions keep the group alive. So
# import that module before `init_process_group`.
#
# Delete a `DistributedDataParallel` before you call it. If the model is the last that knows the
# group, it ends the group while it holds the lock of Python, and can wait forever for a thread of
# gloo that needs this lock. The program to [take home](../examples/train_ddp.py) deletes it.
#
# A rank may return from `init_process_group` while two others still connect. If it ends its group
# then, another rank fails with `Connection closed by peer`. So make a collective that needs all
# ranks, such as `dist.barrier()`, before `destroy_process_group`.
#
# Call `destroy_process_group` in the ranks only, although some programs end with it in the parent.
# A parent that started them has no group to destroy. A `finally` has none either, if
# `init_process_group` failed before it, so ask `is_initialized()` there:
#
# ```console
# $ python -c "import torch.distributed as dist; dist.destroy_process_group()"
# ...
# AssertionError: Process group cannot be None
# ```

# %% [markdown]
# ## Pitfalls
#
# - Under torchrun, do not use `tcp://` with a port of your own, because in torch 2.13 every rank
#   then waits for a store that nobody starts
#   ([pytorch#192113](https://github.com/pytorch/pytorch/pull/192113)). Leave `init_method` out.
# - `init_process_group` and `new_group` are [not
#   thread-safe](https://docs.pytorch.org/docs/stable/distributed.html#initialization). Call them in
#   one thread, because each rank counts its groups, and with two threads the ranks may count
#   differently.
# - In a notebook, `spawn` cannot call a function that you wrote in a cell, because the new process
#   has no such cell. `run` and `collectives.launch` can.

# %% [markdown]
# ## On GPUs
#
# - A forked process cannot use CUDA if its parent has used it (`torch/cuda/__init__.py`: "Cannot
#   re-initialize CUDA in forked subprocess"). `spawn` starts a new process, so it can.
# - If you name no backend, torch makes two (`torch/distributed/distributed_c10d.py`: "both ``gloo``
#   and ``nccl`` backends will be created").
# - All ranks must destroy their groups, in one order, because it may be a call that needs all of
#   them (`torch/distributed/distributed_c10d.py`: "ncclCommAbort() was a 'collective' call in some
#   versions of NCCL").
# - NCCL waits for a shorter time (`torch/distributed/distributed_c10d.py`: "Default value is 10
#   minutes for NCCL and 30 minutes for other backends"). Up to torch 2.14, a watchdog then ends the
#   process. Since 2.15 "nccl" is another engine: [Which NCCL?](../docs/which-nccl.md)

# %% [markdown]
# ## Write it yourself
#
# A program is easier to debug if it also runs without a launcher. Write one that adds up `10**rank`
# of all ranks under torchrun, and that also runs alone, with `python alone.py`, as rank 0 of 1.
#
# <details><summary>Answer</summary>
#
# Save this as `alone.py`:
#
# ```python
# import torch
# import torch.distributed as dist
#
# if dist.is_torchelastic_launched():
#     dist.init_process_group("gloo")
# else:
#     dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
# rank, world_size = dist.get_rank(), dist.get_world_size()
# x = torch.tensor([10**rank])
# dist.all_reduce(x)
# print(f"rank {rank} of {world_size}: x = {x.tolist()}")
# dist.destroy_process_group()
# ```
#
# ```console
# $ python alone.py
# rank 0 of 1: x = [1]
# ```
#
# </details>

# %%
STEPS = [launching, meet_by_environment, init_waits_for_all, meet_at_an_address, meet_in_a_file]

# %% [markdown]
# ## Read on
#
# - F. Darema, *The SPMD Model: Past, Present and Future* (2001): the idea of one program on many
#   processes, by its author.
# - torch's own
#   [rendezvous.py](https://github.com/pytorch/pytorch/blob/main/torch/distributed/rendezvous.py):
#   env://, tcp:// and file://, in about 300 lines of Python.
#
# In PyTorch's documentation:
#
# - [`is_torchelastic_launched`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.is_torchelastic_launched)
# - [`TCPStore`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.TCPStore)
# - [`FileStore`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.FileStore)
# - [`HashStore`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.HashStore)
