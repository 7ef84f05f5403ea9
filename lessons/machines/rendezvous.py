# %% [markdown]
"""
# rendezvous: how torchrun's ranks on several machines meet

Ranks on several machines meet at a store, whose address all of them know.

Your program runs on one machine, and you have got a second one. You start it on both, and both
wait: neither knows where the other one is. At the end of this lesson you know how ranks find each
other, you can choose among three ways to tell them, and you can say who gives each process its
rank. You need no second machine, because the lesson makes two on yours, out of namespaces of Linux.

    python lessons/machines/rendezvous.py
    collectives run machines/rendezvous
"""

# %%
from collectives import Lab, check, in_lab, run, stdout_lines
from connections import Connections

# %% [markdown]
# ## The idea
#
# A **store** is a table of keys and values, which one process holds and all others read and write
# over the network. `init_process_group` needs one, because the ranks do not know each other's
# addresses: every rank writes its own address into the store and reads those of all other ranks.
# Then the ranks connect to each other directly, and no data goes through the store. So three things
# are all that a rank must know beforehand: where the store is, its own rank, and the world size.
# This meeting is called the rendezvous.
#
# ## In the lab
#
# `Lab(2)` makes two machines, node0 and node1. They behave like real ones, because each has its own
# address, host name, /etc/hosts, processes and files in /run/disk. Both see the folder /run/shared.
# `lab.run` runs a command on both at once, where you would type it on each, and `{node}` in the
# command stands for the number of the machine. This program runs once on each machine, and makes a
# store by hand:

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

# %% [markdown]
# **Predict first.** Each rank also writes its address. Which keys does the store hold then?


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


# %%
if __name__ == "__main__":
    run(rendezvous, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 5: `node0`, `node1`, `count`, and the addresses of ranks 0 and 1. Both machines print the same,
# because there is only one store: rank 0's process holds it, and node1 reads it over the network.
#
# </details>
#
# ### Three ways to name the store
#
# Usually you do not make the store yourself, because `init_process_group` makes one where
# `init_method` says. This program meets four times, at four places. The last is a file on a disk
# that the machines do not share. And to make it harder, node0 does not know the name of node1:

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

# %% [markdown]
# **Predict first.** In which of the four places do the ranks meet?


# %%
@in_lab
def three_ways_to_name_it():
    good = ["env://", "file:///run/shared/meet", "tcp://node0:29501"]
    places = " ".join([*good, "file:///run/disk/meet"])
    forget = "grep -v node1 /etc/hosts > /run/disk/new; cat /run/disk/new > /etc/hosts"
    with Lab(2) as lab:
        lab.run(["sh", "-c", forget], on=[0])
        (found,) = lab.run("getent hosts node1", on=[0])
        lab.save("meet.py", MEET)
        variables = f"RANK={{node}} MASTER_ADDR=node0 MASTER_PORT=29500 PLACES='{places}'"
        printed = stdout_lines(lab.run(f"env {variables} python /run/shared/meet.py"))
    check(found.stdout, "", "the address of node1, on node0")
    lines = sorted(
        [f"{place} works: 11" for place in good] + ["file:///run/disk/meet fails: Wait timeout"]
    )
    check([printed["node0"], printed["node1"]], [lines, lines], "four meetings")
    return printed


# %%
if __name__ == "__main__":
    run(three_ways_to_name_it, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# In all but `file:///run/disk/meet`, although node0 cannot resolve the name of node1.
#
# - `env://` is the default. It reads `MASTER_ADDR` and `MASTER_PORT`, and rank 0 opens the store
#   there. torchrun sets these variables.
# - `tcp://node0:29501` does the same without variables.
# - `file://` keeps the table in a file, which all machines must see. In /run/disk each machine has
#   a file of its own, so its rank waits for the other one until the time limit. The file must be
#   new, because what an earlier job has left in it leads to wrong addresses.
#
# So a machine must resolve only one name of another machine: `MASTER_ADDR`. Besides, each machine
# resolves its *own* host name, and gloo writes that address into the store.
# [interfaces](../../notebooks/machines/interfaces.ipynb) shows what happens if no other machine can
# reach it.
#
# </details>
#
# ### Who gives the numbers
#
# A rank must also know its number. With torchrun, each machine runs one **agent** (`torchrun`),
# which starts and numbers the ranks of that machine, here two. This program shows what a rank finds
# in its environment.

# %%
WHO = r"""
import os
import sys

names = "RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "NODE_RANK"
found = [f"{name}={os.environ[name]}" for name in names if name in os.environ]
sys.stdout.write(" ".join([*found, *sys.argv[1:]]) + "\n")
"""

# %% [markdown]
# **Predict first.** The second rank of node1 is rank 3. Which `LOCAL_RANK` does it have?


# %%
@in_lab
def who_gives_the_numbers():
    meeting = "--nnodes 2 --nproc-per-node 2 --node-rank {node} --master-addr node0"
    agreed = "--nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint node0:29400"
    launch = f"python -m torch.distributed.launch {meeting}"
    with Lab(2) as lab:
        lab.save("who.py", WHO)
        fixed = stdout_lines(lab.run(f"torchrun {meeting} /run/shared/who.py"))
        both = fixed["node0"] + fixed["node1"]
        every = [dict(one.split("=") for one in line.split()) for line in both]
        check([one for one in every if "NODE_RANK" in one], [], "NODE_RANK, which torchrun sets")
        printing = [one["RANK"] for one in every if one["LOCAL_RANK"] == "0"]
        check(printing, ["0", "2"], "ranks that print if local rank 0 does")
        beyond = [one["RANK"] for one in every if int(one["RANK"]) >= 2]
        check(beyond, ["2", "3"], "ranks whose RANK is no GPU, of two on each machine")
        c10d = stdout_lines(lab.run(f"torchrun {agreed} --rdzv-id job-7 /run/shared/who.py"))
        old = stdout_lines(lab.run(f"{launch} /run/shared/who.py"))
    numbers = [(2 * node + local, local, node) for node in (0, 1) for local in (0, 1)]
    lines = [f"RANK={r} LOCAL_RANK={n} GROUP_RANK={g} WORLD_SIZE=4" for r, n, g in numbers]
    check(fixed, {"node0": lines[:2], "node1": lines[2:]}, "torchrun --node-rank")
    check(sorted(c10d.values()), [lines[:2], lines[2:]], "torchrun --rdzv-backend c10d")
    with_option = [f"{line} --local-rank={number % 2}" for number, line in enumerate(lines)]
    check(old, {"node0": with_option[:2], "node1": with_option[2:]}, "torch.distributed.launch")
    return fixed


# %%
if __name__ == "__main__":
    run(who_gives_the_numbers, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 1, because `LOCAL_RANK` counts on the machine, which is why it chooses the GPU. `GROUP_RANK` is
# the number of the machine, which torchrun calls the node rank.
#
# So three lines of many programs are wrong on two machines. `cuda(rank)` asks node1 for the GPUs 2
# and 3, and it has 0 and 1. `if local_rank == 0: print(...)` prints once on each machine. And
# `NODE_RANK` is not among the variables that torchrun sets.
#
# </details>
#
# - With `torchrun --node-rank` you number the machines, so the command differs from machine to
#   machine.
# - With `torchrun --rdzv-backend c10d` the agents meet at a store and agree on the numbers. The
#   command is the same everywhere, but which machine becomes number 0 may differ from run to run.
#   Only this way can replace a machine: see [elastic](../../notebooks/machines/elastic.ipynb).
# - `python -m torch.distributed.launch` is the old name of torchrun, and deprecated. It also passes
#   the option `--local-rank=1` to the program, which should read `LOCAL_RANK` today.

# %%
STEPS = [rendezvous, three_ways_to_name_it, who_gives_the_numbers]

# %% [markdown]
# ## On your cluster
#
# Put the name or address of one of your machines in the place of node0, type the command on each
# machine, and replace `{node}` by its number, or see [Several machines](../../docs/clusters.md).

# %% [markdown]
# ## Pitfalls
#
# - Under torchrun use `env://`, or no `init_method`. With `tcp://` on a port of your own all ranks
#   of torch 2.13 are clients and wait for a store that nobody opens
#   ([pytorch#192113](https://github.com/pytorch/pytorch/issues/192113)). Torch 2.14 opens it.
# - `MASTER_ADDR=localhost` works on one machine. On two, each waits for ranks that look elsewhere.
# - A wrong name, a closed port and a rank 0 that has not started give the same message. [What goes
#   wrong between machines](../../docs/machines.md) says how to distinguish them.
# - Two jobs that meet at the same store at the same time need different `--rdzv-id`s.

# %% [markdown]
# ## Read on
#
# [torchrun](https://docs.pytorch.org/docs/stable/elastic/run.html), in PyTorch's documentation.
#
# The ranks have met, and now each has an address of every other. Next lesson:
# [interfaces](../../notebooks/machines/interfaces.ipynb), why that address is sometimes wrong.
