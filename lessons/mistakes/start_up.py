# %% [markdown]
"""
# start_up: ranks that do not find each other, MASTER_ADDR and MASTER_PORT

Before the first collective the ranks have to find each other, and in these four programs they do
not.

A launcher such as torchrun hands each rank a few variables: its number, how many ranks there are,
and where they meet. You need not look at them, until a second job or a second machine makes one of
them wrong. At the end of this lesson you can tell which one it is.

Find each mistake yourself first: read "You see" and the program, and say which line is wrong. Then
open the output, the answer, and the cure below it. The ranks start as torchrun starts them: with
its variables, and without a process group.

    python lessons/mistakes/start_up.py
    torchrun --nproc-per-node 4 lessons/mistakes/start_up.py
"""

# %%
from collectives import check, cure, mistake, run
import os
import socket
import torch
import torch.distributed as dist

# %% [markdown]
# ## Program 1: a second job on one machine
#
# **You see.** Rank 0 raises an error:
#
# ```text
# torch.distributed.DistNetworkError: The server socket has failed to listen on any local network
# address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use
# ```
#
# Rank 1 finds the other job on that port, and waits there for its own rank 0.


# %%
@mistake("raises an error", ranks=2, fresh=True)
def a_second_job(rank, world_size, device):
    port = int(os.environ["MASTER_PORT"])  # think of 29500, which every tutorial uses
    # torchrun's store listens on this port, and plays the other job. Connecting shows that the port
    # is taken.
    socket.create_connection(("127.0.0.1", port)).close()
    # A job without torchrun does not have this variable. So rank 0 itself tries to listen on the port.
    del os.environ["TORCHELASTIC_USE_AGENT_STORE"]
    dist.init_process_group("gloo")
    x = torch.tensor([10**rank], device=device)
    dist.all_reduce(x)
    check(x, torch.tensor([11]), "all_reduce(SUM)")


# %%
if __name__ == "__main__":
    run(a_second_job, folded=True)

# %% [markdown]
# <details><summary>What is wrong?</summary>
#
# **Cause: two jobs on one port.** Only one process can listen on a port, so a second job on the
# same machine must use another one.
#
# **Cure.** Let the launcher choose: `torchrun --standalone` takes a free port and tells all ranks,
# and `init_process_group` without an address uses it.
#
# **Early.** Search your scripts for 29500. But "address already in use" may also mean that
# yesterday's job still runs.
#
# </details>


# %%
@cure(ranks=2, fresh=True)
def port_of_the_launcher(rank, world_size, device):
    dist.init_process_group("gloo")
    x = torch.tensor([10**rank], device=device)
    dist.all_reduce(x)
    check(x, torch.tensor([11]), "all_reduce(SUM)")
    dist.destroy_process_group()
    return {"x": x}


# %%
if __name__ == "__main__":
    run(port_of_the_launcher, folded=True)

# %% [markdown]
# ## Program 2: two machines
#
# **You see.** The program has always worked on one machine, but on two machines all ranks wait at
# start-up. After 30 minutes:
#
# ```text
# torch.distributed.DistStoreError: wait timeout after 1800000ms, keys: /default_pg/0//cpu//0/...
# ```


# %%
@mistake("hangs", ranks=4, fresh=True)
def start_on_two_machines(rank, world_size, device):
    os.environ["LOCAL_RANK"] = str(rank % 2)  # as on two machines with two ranks each
    me = int(os.environ["LOCAL_RANK"])
    dist.init_process_group("gloo", rank=me, world_size=world_size)
    check(dist.get_rank(), rank, "rank")


# %%
if __name__ == "__main__":
    run(start_on_two_machines, folded=True)

# %% [markdown]
# <details><summary>What is wrong?</summary>
#
# **Cause: LOCAL_RANK in place of RANK.** `LOCAL_RANK` starts from 0 on each machine, so there are
# two ranks 0 and two ranks 1, and all four wait for ranks 2 and 3. The picture shows the number
# that each rank gives itself.
#
# **Cure.** `RANK` is the number in the world, and `LOCAL_RANK` is for choosing the GPU. Leave out
# `rank=`, and torch reads the right one. A `rank=0` in every process, which snippets have, makes
# the same mistake.
#
# **Early.** On one machine the two numbers are equal, so a test there shows nothing, unless you
# start `torchrun --nnodes 2` in two terminals.
#
# </details>


# %%
@cure(ranks=4, fresh=True)
def rank_for_rank(rank, world_size, device):
    os.environ["LOCAL_RANK"] = str(rank % 2)
    dist.init_process_group("gloo")
    check(dist.get_rank(), rank, "rank")
    x = torch.tensor([10**rank], device=device)
    dist.all_reduce(x)
    check(x, torch.tensor([1111]), "all_reduce(SUM)")
    dist.destroy_process_group()
    return {"RANK": rank, "LOCAL_RANK": int(os.environ["LOCAL_RANK"])}


# %%
if __name__ == "__main__":
    run(rank_for_rank, folded=True)

# %% [markdown]
# ## Program 3: a start by hand
#
# **You see.** Every rank immediately raises an error, which names the cause:
#
# ```text
# ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable
# MASTER_ADDR expected, but not set
# ```


# %%
@mistake("raises an error", ranks=2, fresh=True)
def start_by_hand(rank, world_size, device):
    del os.environ["MASTER_ADDR"]  # as if you start it by hand and forget to set it
    dist.init_process_group("gloo")
    check(dist.get_rank(), rank, "rank")


# %%
if __name__ == "__main__":
    run(start_by_hand, folded=True)

# %% [markdown]
# <details><summary>What is wrong?</summary>
#
# **Cause: a variable is missing.** `python train.py` sets none of RANK, WORLD_SIZE, MASTER_ADDR and
# MASTER_PORT, but torchrun sets all four.
#
# **Cure.** Start the program with torchrun. A program that should also run on its own can check
# `dist.is_torchelastic_launched()`.
#
# **Early.** Check in the first line of `main()`, before the model is loaded.
#
# </details>


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
    run(ask_for_the_variables, folded=True)

# %% [markdown]
# ## Program 4: all interfaces but two
#
# **You see.** The variable was copied from a script for NCCL, where the same value works. But here
# every rank raises an error at once:
#
# ```text
# RuntimeError: [enforce fail at .../gloo/transport/tcp/device.cc:84] ifa != nullptr. Unable to find
# address for: ^lo
# ```


# %%
@mistake("raises an error", ranks=2, fresh=True)
def all_interfaces_but_two(rank, world_size, device):
    os.environ["GLOO_SOCKET_IFNAME"] = "^lo,docker0"
    dist.init_process_group("gloo")
    check(dist.get_rank(), rank, "rank")


# %%
if __name__ == "__main__":
    run(all_interfaces_but_two, folded=True)

# %% [markdown]
# <details><summary>What is wrong?</summary>
#
# **Cause: NCCL's syntax is given to gloo.** In `NCCL_SOCKET_IFNAME`, a `^` means "all but these".
# But gloo knows only a list of names, so it looks for an interface that is called `^lo`. [Others
# have met this](https://github.com/aws-samples/aws-do-eks/pull/51).
#
# **Cure.** Name the interface to use, or leave the variable out, because then gloo takes the
# address of the machine's own name.
#
# **Early.** `ip -br address` lists the names.
#
# </details>


# %%
@cure(ranks=2, fresh=True)
def an_interface_by_name(rank, world_size, device):
    names = [name for _, name in socket.if_nameindex()]
    os.environ["GLOO_SOCKET_IFNAME"] = next(name for name in names if name.startswith("lo"))
    dist.init_process_group("gloo")
    check(dist.get_rank(), rank, "rank")
    dist.barrier()
    dist.destroy_process_group()
    return {"interface": os.environ["GLOO_SOCKET_IFNAME"]}


# %%
if __name__ == "__main__":
    run(an_interface_by_name, folded=True)

# %% [markdown]
# This was the last of these lessons. If your own job hangs, [diagnosis](../../docs/diagnosis.md)
# says where.

# %%
STEPS = [
    a_second_job,
    port_of_the_launcher,
    start_on_two_machines,
    rank_for_rank,
    start_by_hand,
    ask_for_the_variables,
    all_interfaces_but_two,
    an_interface_by_name,
]
