# %% [markdown]
"""
# mpi

On many clusters mpiexec starts the ranks. It is older than torchrun, and MPI needs no store: its
launcher carries the addresses. You meet it where a site offers no other launcher, in programs
that call MPI themselves, and with the backend `mpi`.

You will see mpiexec with a file of hosts, a sum over two machines without torch, and a torch
program that mpiexec starts.

    python lessons/machines/mpi.py
    collectives run machines/mpi
"""

# %%
from collectives import Lab, check, in_lab, run, stdout_lines
from connections import Connections

# %% [markdown]
# ## The idea
#
# torchrun runs on every machine. mpiexec runs on one, and starts its ranks on the others by ssh. A
# file says which machines there are, and how many ranks each gets. Each rank finds its number and
# the world size in its environment, and asks mpiexec, through a pipe, for what else it must know:
# this is called PMI.
#
# ## In the lab
#
# mpiexec is called on the host `login`. There is no ssh in the lab; mpiexec calls another program
# in its place. This is the file `hosts`, and a program with mpi4py:

# %%
HOSTS = """
node0:3
node1:1
"""
MPI_SUM = r"""
import os
from mpi4py import MPI

world = MPI.COMM_WORLD
total = world.allreduce(10**world.rank)
print(f"rank {world.rank} of {world.size} on {os.uname().nodename}: {total}\n", end="", flush=True)
"""

# %% [markdown]
# **Predict first.** The file says `node0:3` and `node1:1`. On which machine is rank 2? Write its
# number down.


# %%
@in_lab
def mpi():
    with Lab(2) as lab:
        lab.save("hosts", HOSTS)
        lab.save("sum.py", MPI_SUM)
        mpiexec = "mpiexec -f /run/shared/hosts -n 4 python /run/shared/sum.py"
        printed = stdout_lines(lab.run(mpiexec, on=["login"]))["node0"]
    names = ["node0", "node0", "node0", "node1"]
    expected = [f"rank {rank} of 4 on {name}: 1111" for rank, name in enumerate(names)]
    check(printed, expected, "MPI_Allreduce")
    ranks = [f"{name}/rank {rank}" for rank, name in enumerate(names)]
    links = {
        "mpiexec starts a helper on each machine, by ssh.": [
            ("login/mpiexec", f"{node}/helper") for node in ("node0", "node1")
        ],
        "Each helper starts the ranks of its machine, and answers what they ask.": [
            (f"{rank[:5]}/helper", rank) for rank in ranks
        ],
        "Ranks connect to each other; of six pairs, this is one.": [(ranks[0], ranks[3])],
    }
    machines = {
        "node0": ["helper", *(f"rank {rank}" for rank in range(3))],
        "login": ["mpiexec"],
        "node1": ["helper", "rank 3"],
    }
    return Connections({"login": printed}, machines, links)


# %%
if __name__ == "__main__":
    run(mpi)

# %% [markdown]
# <details><summary>Answer</summary>
#
# On node0: mpiexec fills one machine after the other, in blocks. All lines arrive at `login`,
# because mpiexec collects what its ranks print.
#
# </details>

# %% [markdown]
# ### torch under mpiexec
#
# A torch program with gloo needs the four variables of `env://`. mpiexec gives it two of them under
# other names. So the program translates, and the command names the store:

# %%
TORCH_SUM = r"""
import os
import torch
import torch.distributed as dist

rank, world_size = int(os.environ["PMI_RANK"]), int(os.environ["PMI_SIZE"])
store = "tcp://node0:29500"
dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world_size)
x = torch.tensor([10**rank])
dist.all_reduce(x)
print(f"rank {rank} of {world_size} on {os.uname().nodename}: {x.item()}\n", end="", flush=True)
dist.destroy_process_group()
"""

# %% [markdown]
# **Predict first.** `-ppn 1` deals one rank to each machine, then starts over. How many of four
# ranks does node0 get? Write the number down.


# %%
@in_lab
def torch_under_mpiexec():
    with Lab(2) as lab:
        lab.save("sum.py", TORCH_SUM)
        mpiexec = "mpiexec -hosts node0,node1 -ppn 1 -n 4 python /run/shared/sum.py"
        printed = stdout_lines(lab.run(mpiexec, on=["login"]))["node0"]
    check(printed, [f"rank {rank} of 4 on node{rank % 2}: 1111" for rank in range(4)], "all_reduce")
    return {"login": printed}


# %%
if __name__ == "__main__":
    run(torch_under_mpiexec)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 2: ranks 0 and 2. That is round-robin, the placement that costs most in
# [cables](../../notebooks/machines/cables.ipynb). Use `-ppn 2`, or a file of hosts.
#
# </details>
#
# The lessons of this package do the translation themselves. `mpiexec -f hosts -n 4 python
# lessons/all_reduce.py` runs the lesson over MPI, and no store is needed.

# %%
STEPS = [mpi, torch_under_mpiexec]

# %% [markdown]
# ## On your cluster
#
# You must be able to log in to every machine by ssh without a password, and find the same Python at
# the same path there. [Several machines](../../docs/clusters.md#mpiexec) has the command for the
# lessons. This lesson needs MPICH's mpiexec, which comes with `collectives[mpi]`. That of Open MPI
# has other options and other variables (`OMPI_COMM_WORLD_RANK`).

# %% [markdown]
# ## Pitfalls
#
# - `mpiexec` of one MPI and `mpi4py` of another: each process is then rank 0 of 1.
# - Variables that you export reach the ranks with MPICH; with Open MPI only if `-x` names them.
# - If one rank dies, mpiexec ends all of them. There is no restart.

# %% [markdown]
# ## Read on
#
# - [mpi4py](https://mpi4py.readthedocs.io).
# - [`all_reduce`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_reduce)
# - [`init_process_group`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.init_process_group)
#
# Next lesson: [slow_machine](../../notebooks/machines/slow_machine.ipynb), for which all others
# wait.
