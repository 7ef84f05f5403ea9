# %% [markdown]
"""
# rendezvous

Ranks on several machines meet at a store, whose address all of them know. They do not know each
other's addresses.

You will see what a store is and what gloo writes into it, three ways to name it, which names a
machine must be able to resolve, and who gives each process its rank: all this on two machines,
which this lesson makes on yours, out of namespaces of Linux.

    python lessons/machines/rendezvous.py
    collectives run machines/rendezvous
"""

# %%
from collectives import Lab, check, in_lab, run, stdout_lines
from collectives.pictures.connections import Connections

# %% [markdown]
# ## The idea
#
# A **store** is a table of keys and values, which one process holds and all others read and write
# over the network. `init_process_group` needs one. Every rank writes its own address into it and
# reads those of the others, and then the ranks connect to each other. From then on, the data goes
# from rank to rank, and not through the store.
#
# So every rank must know three things before it knows anybody: where the store is, its own rank,
# and the world size. The meeting is called the rendezvous.
#
# ## In the lab
#
# `Lab(2)` makes two machines, node0 and node1. Each has its own address, host name, /etc/hosts,
# processes and files in /run/disk. All machines see the folder /run/shared, as they would see a
# network drive on a cluster. `lab.run` runs a command on all of them at once; you would type the
# command on each. In the command, `{node}` stands for the number of the machine.
#
# This program runs once on each machine. It makes a store by hand:

# %%
STORE = """
import os
import torch.distributed as dist

me = os.uname().nodename
store = dist.TCPStore("node0", 29500, world_size=2, is_master=me == "node0")
store.set(me, "my value")
store.add("count", 1)  # one step, so that two ranks at the same time count as two

rank = int(me[-1])
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
print(len(store.list_keys()), "keys, count is", store.add("count", 0))
print("gloo wrote", sorted(key for key in store.list_keys() if "cpu" in key))
dist.barrier()
dist.destroy_process_group()
"""


# %%
@in_lab
def rendezvous():
    with Lab(2) as lab:
        lab.save("store.py", STORE)
        printed = stdout_lines(lab.run("python /run/shared/store.py"))
    lines = ["5 keys, count is 2", "gloo wrote ['0//cpu//0/0', '0//cpu//0/1']"]
    check(printed["node0"], lines, "node0's store")
    check(printed["node1"], lines, "node0's store, read by node1")
    ranks, store = ("node0/rank 0", "node1/rank 1"), "node0/store"
    links = {
        "Each rank writes its address into the store, and reads the other one's.": [
            (rank, store) for rank in ranks
        ],
        "Then the ranks connect to each other, and the data goes this way.": [ranks, ranks[::-1]],
    }
    return Connections(printed, {"node0": ["store", "rank 0"], "node1": ["rank 1"]}, links)


# %% [markdown]
# **Predict first.** Each rank writes one value under its own name, and both count in the same key.
# Then they make a process group, for which each rank writes its address. How many keys does the
# store hold then? Write the number down.

# %%
if __name__ == "__main__":
    run(rendezvous)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 5: `node0`, `node1`, `count`, and the addresses of ranks 0 and 1. Both machines print the same,
# because there is one store: rank 0's process holds it, and node1 reads it over the network.
#
# </details>

# %% [markdown]
# ### Three ways to name the store
#
# Usually you do not make the store. `init_process_group` makes one where `init_method` says. This
# program meets four times. The last file is on a disk that the machines do not share:

# %%
MEET = """
import datetime
import os
import torch
import torch.distributed as dist

rank = int(os.environ["RANK"])
limit = datetime.timedelta(seconds=5)
for place in os.environ["PLACES"].split():
    try:
        dist.init_process_group(
            "gloo", init_method=place, rank=rank, world_size=2, timeout=limit
        )
    except RuntimeError as error:
        print(place, "fails:", error)
        continue
    x = torch.tensor([10**rank])
    dist.all_reduce(x)
    print(place, "works:", x.item())
    dist.barrier()
    dist.destroy_process_group()
"""


# %%
@in_lab
def three_ways_to_name_it():
    good = ["env://", "file:///run/shared/meet", "tcp://node0:29501"]
    places = " ".join([*good, "file:///run/disk/meet"])
    with Lab(2) as lab:
        lab.save("meet.py", MEET)
        variables = f"RANK={{node}} MASTER_ADDR=node0 MASTER_PORT=29500 PLACES='{places}'"
        printed = stdout_lines(lab.run(f"env {variables} python /run/shared/meet.py"))
    lines = sorted(
        [f"{place} works: 11" for place in good] + ["file:///run/disk/meet fails: Wait timeout"]
    )
    check([printed["node0"], printed["node1"]], [lines, lines], "four meetings")
    return printed


# %% [markdown]
# **Predict first.** The sum of an `all_reduce` proves that the ranks have met: rank 0 has 1, rank 1
# has 10. In which of the four places do they meet?

# %%
if __name__ == "__main__":
    run(three_ways_to_name_it)

# %% [markdown]
# <details><summary>Answer</summary>
#
# In all but `file:///run/disk/meet`.
#
# - `env://` is the default. It reads `MASTER_ADDR` and `MASTER_PORT`, and rank 0 opens the store
#   there. torchrun sets these variables.
# - `tcp://node0:29501` does the same without variables.
# - `file://` keeps the table in a file. No port is needed, but all machines must see the file. In
#   /run/disk each machine has one of its own, and its rank waits for the other one until the time
#   limit. It must also be a new file: what an earlier job has left in it leads to wrong addresses.
#
# </details>

# %% [markdown]
# ### Who must resolve whose name
#
# A name becomes an address by DNS or by /etc/hosts. Here node0 forgets the name of node1 before the
# two meet:


# %%
@in_lab
def whose_name():
    forget = "grep -v node1 /etc/hosts > /run/disk/new; cat /run/disk/new > /etc/hosts"
    with Lab(2) as lab:
        lab.run(["sh", "-c", forget], on=[0])
        (found,) = lab.run("getent hosts node1", on=[0])
        lab.save("meet.py", MEET)
        variables = "RANK={node} MASTER_ADDR=node0 MASTER_PORT=29500 PLACES=env://"
        printed = stdout_lines(lab.run(f"env {variables} python /run/shared/meet.py"))
    check(found.stdout, "", "the address of node1, on node0")
    check(list(printed.values()), [["env:// works: 11"]] * 2, "a meeting")
    return printed


# %% [markdown]
# **Predict first.** node0 does not know any node1. Which of the two machines prints that it works?

# %%
if __name__ == "__main__":
    run(whose_name)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Both. Every machine must resolve one name of another machine: `MASTER_ADDR`. Besides, each machine
# resolves its *own* host name, and gloo writes the address into the store. So the others read an
# address and no name. It must be an address that they can reach:
# [interfaces](../../notebooks/machines/interfaces.ipynb) shows what happens if it is not.
#
# </details>

# %% [markdown]
# ### Who gives the numbers
#
# With more than one GPU on a machine, you want several ranks there. A launcher starts them and
# numbers them. Each machine runs one **agent** (`torchrun`), which starts the ranks of that
# machine, here two. This program shows what a rank finds in its environment. It meets nobody, so it
# needs no torch.

# %%
WHO = r"""
import os
import sys

names = "RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE"
found = [f"{name}={os.environ[name]}" for name in names]
sys.stdout.write(" ".join([*found, *sys.argv[1:]]) + "\n")
"""


# %%
@in_lab
def who_gives_the_numbers():
    meeting = "--nnodes 2 --nproc-per-node 2 --node-rank {node} --master-addr node0"
    agreed = "--nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint node0:29400"
    with Lab(2) as lab:
        lab.save("who.py", WHO)
        fixed = stdout_lines(lab.run(f"torchrun {meeting} /run/shared/who.py"))
        c10d = stdout_lines(lab.run(f"torchrun {agreed} --rdzv-id job-7 /run/shared/who.py"))
        old = stdout_lines(
            lab.run(f"python -m torch.distributed.launch {meeting} /run/shared/who.py")
        )
    numbers = [(2 * node + local, local, node) for node in (0, 1) for local in (0, 1)]
    lines = [f"RANK={r} LOCAL_RANK={n} GROUP_RANK={g} WORLD_SIZE=4" for r, n, g in numbers]
    check(fixed, {"node0": lines[:2], "node1": lines[2:]}, "torchrun --node-rank")
    check(sorted(c10d.values()), [lines[:2], lines[2:]], "torchrun --rdzv-backend c10d")
    with_option = [f"{line} --local-rank={number % 2}" for number, line in enumerate(lines)]
    check(old, {"node0": with_option[:2], "node1": with_option[2:]}, "torch.distributed.launch")
    return fixed


# %% [markdown]
# **Predict first.** The second rank of node1 is rank 3. Which `LOCAL_RANK` does it have? Write the
# number down.

# %%
if __name__ == "__main__":
    run(who_gives_the_numbers)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 1: `LOCAL_RANK` counts on the machine, and chooses the GPU. `GROUP_RANK` is the number of the
# machine, which torchrun calls the node rank.
#
# </details>
#
# The step runs three launchers:
#
# - `torchrun --node-rank`: you number the machines. The command differs from machine to machine.
# - `torchrun --rdzv-backend c10d`: the agents meet at a store first and agree on the numbers. The
#   command is the same everywhere, and which machine becomes number 0 may differ from run to run.
#   Only this one can replace a machine: see [elastic](../../notebooks/machines/elastic.ipynb).
# - `python -m torch.distributed.launch` is the old name of torchrun, and deprecated. It sets the
#   same variables, and also passes the option `--local-rank=1` to the program. Old programs read
#   it with `argparse`. Today they should read `LOCAL_RANK`.

# %%
STEPS = [rendezvous, three_ways_to_name_it, whose_name, who_gives_the_numbers]

# %% [markdown]
# ## On your cluster
#
# Put the name or address of one of your machines in the place of node0, type the command on each
# machine, and replace `{node}` by its number. [Several machines](../../docs/clusters.md) has a
# command for each launcher and scheduler. To look around in the lab, open a prompt on machine 0:
#
# ```sh
# collectives lab 2 --shell 0
# ```

# %% [markdown]
# ## Pitfalls
#
# - Under torchrun use `env://`, or no `init_method`. With `tcp://` on a port of your own all ranks
#   are clients and wait for a store that nobody opens
#   ([pytorch#192113](https://github.com/pytorch/pytorch/issues/192113)).
# - `MASTER_ADDR=localhost` works on one machine. On two, each waits for itself.
# - A wrong name, a closed port and a rank 0 that has not started give the same message, after the
#   time limit: [what goes wrong between machines](../../docs/machines.md) tells them apart.
# - Two jobs that meet at the same store at the same time need different `--rdzv-id`s.

# %% [markdown]
# ## Read on
#
# - [torchrun](https://docs.pytorch.org/docs/stable/elastic/run.html), in PyTorch's documentation.
# - [`TCPStore`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.TCPStore)
# - [`all_reduce`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_reduce)
# - [`barrier`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.barrier)
# - [`init_process_group`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.init_process_group)
#
# Next lesson: [interfaces](../../notebooks/machines/interfaces.ipynb), on the addresses that ranks
# tell each other.
