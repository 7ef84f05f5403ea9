# %% [markdown]
"""
# mpi: start ranks with mpiexec

One `mpiexec` starts the ranks of a torch program on all machines.

On some clusters there is neither Slurm nor a way to type `torchrun` on every machine: their manual
says `mpiexec`, the launcher of MPI. Your training uses gloo or NCCL, and MPI has no part in it, but
you can start it like that all the same. At the end of this lesson you can translate what mpiexec
gives each rank, and decide on which machine each rank runs.

    python lessons/machines/mpi.py
    collectives run machines/mpi
"""

# %%
from collectives import Lab, check, in_lab, run, stdout_lines
from connections import Connections

# %% [markdown]
# ## The idea
#
# You start torchrun on every machine, but mpiexec on one: it logs in to all other machines by ssh
# and starts its ranks there. A file says which machines there are, and how many ranks each gets.
#
# Each rank then needs what you know from `env://`: its number, the world size, and the address of
# the store. mpiexec gives it the first two, but under names of its own. It knows nothing of a
# store, because MPI needs none, so that address stands in the program.
#
# ## In the lab
#
# You type `mpiexec` on the host `login`. The lab has no ssh, so mpiexec calls another program in
# its place. This is the file `hosts`, and the program:

# %%
HOSTS = """
node0:3
node1:1
"""
PROGRAM = r"""
import os
import torch
import torch.distributed as dist

rank, world_size = int(os.environ["PMI_RANK"]), int(os.environ["PMI_SIZE"])
local_rank = os.environ["MPI_LOCALRANKID"]
store = "tcp://node0:29500"
dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size)
x = torch.tensor([10**rank])
dist.all_reduce(x)
node = os.uname().nodename
print(f"rank {rank} is local rank {local_rank} on {node}: {x.item()}\n", end="", flush=True)
dist.destroy_process_group()
"""

# %% [markdown]
# **Predict first.** The file says `node0:3` and `node1:1`. On which machine is rank 2, and which
# local rank has rank 3?


# %%
@in_lab
def mpi():
    with Lab(2) as lab:
        lab.save("hosts", HOSTS)
        lab.save("sum.py", PROGRAM)
        mpiexec = "mpiexec -f /run/shared/hosts -n 4 python /run/shared/sum.py"
        printed = stdout_lines(lab.run(mpiexec, on=["login"]))["node0"]
    expected = [
        f"rank {rank} is local rank {rank % 3} on node{rank // 3}: 1111" for rank in range(4)
    ]
    check(printed, expected, "blocks")
    ranks = [f"node{rank // 3}/rank {rank}" for rank in range(4)]
    links = {
        "mpiexec starts a helper on each machine, by ssh.": [
            ("login/mpiexec", f"{node}/helper") for node in ("node0", "node1")
        ],
        "Each helper starts the ranks of its machine.": [
            (f"{rank[:5]}/helper", rank) for rank in ranks
        ],
        "Every rank calls rank 0, which has the store; of three, this is one.": [
            (ranks[3], ranks[0])
        ],
    }
    machines = {
        "node0": ["helper", *(f"rank {rank}" for rank in range(3))],
        "login": ["mpiexec"],
        "node1": ["helper", "rank 3"],
    }
    return Connections({"login": printed}, machines, links)


# %%
if __name__ == "__main__":
    run(mpi, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Rank 2 is on node0, because mpiexec fills one machine after the other, in blocks. Rank 3 is local
# rank 0 of node1, so it would take GPU 0 there.
#
# </details>
#
# All lines arrive at `login`, because mpiexec collects what its ranks print. Blocks are good:
# neighbours are on one machine, and few messages cross the cable. But other options place the ranks
# differently.

# %% [markdown]
# ### One rank for each machine in turn
#
# **Predict first.** `-ppn 1` gives one rank to each machine, and then starts over. Which of the
# four ranks does node0 get?


# %%
@in_lab
def round_robin():
    with Lab(2) as lab:
        lab.save("sum.py", PROGRAM)
        mpiexec = "mpiexec -hosts node0,node1 -ppn 1 -n 4 python /run/shared/sum.py"
        printed = stdout_lines(lab.run(mpiexec, on=["login"]))["node0"]
    expected = [
        f"rank {rank} is local rank {rank // 2} on node{rank % 2}: 1111" for rank in range(4)
    ]
    check(printed, expected, "round-robin")
    return {"login": printed}


# %%
if __name__ == "__main__":
    run(round_robin, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Ranks 0 and 2. This is round-robin, where all neighbours in a ring are on different machines: the
# placement that costs most in [cables](../../notebooks/machines/cables.ipynb). Use `-ppn 2`, or a
# file of hosts.
#
# </details>
#
# The lessons of this package do the translation themselves, and then use MPI for the calls, too:
# `mpiexec -f hosts -n 4 python lessons/all_reduce.py` needs no store.

# %%
STEPS = [mpi, round_robin]

# %% [markdown]
# ## On your cluster
#
# You must be able to log in to every machine by ssh without a password, and every machine must have
# the same Python at the same path. [Several machines](../../docs/clusters.md#mpiexec) has the
# command for the lessons. They need MPICH's mpiexec, which `torch-collectives[mpi]` brings. That of
# Open MPI has other options, and its variables have other names (`OMPI_COMM_WORLD_RANK`).

# %% [markdown]
# ## Pitfalls
#
# - If a program calls MPI itself, and `mpiexec` is of one MPI and `mpi4py` of another, each process
#   is rank 0 of 1.
# - With MPICH the ranks get every variable that you export. With Open MPI they get only those that
#   you name with `-x`.
# - If one rank dies, mpiexec ends all of them, and nothing starts them again.

# %% [markdown]
# ## Read on
#
# - [mpi4py](https://mpi4py.readthedocs.io).
# - [`all_reduce`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_reduce)
# - [`init_process_group`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.init_process_group)
#
# All ranks run now, on good machines. Next lesson:
# [slow_machine](../../notebooks/machines/slow_machine.ipynb), one that slows down all others.
