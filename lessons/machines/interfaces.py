# %% [markdown]
"""
# interfaces: NCCL_SOCKET_IFNAME, and the wrong network interface

An address that no other machine can reach is the most common reason why a first job on two machines
fails.

`ping` works, the store is open, both ranks have started, and then nothing happens, or one of them
says "Connection refused" with an address that is its own. At the end of this lesson you know which
address gloo puts into the store and why it may be the wrong one, you can choose it by
`GLOO_SOCKET_IFNAME`, and you can tell your administrator which ports must be open.

    python lessons/machines/interfaces.py
    collectives run machines/interfaces
"""

# %%
from collectives import Lab, check, in_lab, run, stdout_lines
from connections import Connections

# %% [markdown]
# ## The idea
#
# A machine has several network **interfaces**, each with an address: `lo` for itself alone, one or
# more network cards, often a bridge of Docker or a VPN. gloo must choose one of them. It uses the
# address that the machine's own host name resolves to, opens a port there, and writes both into the
# store. If `GLOO_SOCKET_IFNAME` is set, it uses the address of that interface.
#
# Debian and Ubuntu write a line such as `127.0.1.1 node1` into /etc/hosts. On node1 its own name
# then resolves to an address that every machine uses for itself. node0 reads this address in the
# store, tries to connect to node1, and reaches itself.
#
# ## In the lab
#
# This program meets three times, each time with another interface. Both machines have the line with
# 127.0.1.1, as after a normal installation.

# %%
MEET = r"""
import datetime
import os
import torch
import torch.distributed as dist

GLOO = "Unable to find address", "connectFullMesh failed"
for port, interface in enumerate(["eth0", "eth9", ""], start=29500):
    os.environ["GLOO_SOCKET_IFNAME"] = interface
    if not interface:
        del os.environ["GLOO_SOCKET_IFNAME"]
    os.environ["MASTER_PORT"] = str(port)
    try:
        dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=1.5))
        outcome = "works"
        dist.barrier()
        dist.destroy_process_group()
    except RuntimeError as error:
        outcome = next(words for words in GLOO if words in str(error))
    print(interface or "(not set)", outcome)
"""

# %% [markdown]
# **Predict first.** `ip addr` on both machines shows `lo` and `eth0`. With which of the three
# settings `eth0`, `eth9` and none do the machines meet?


# %%
@in_lab
def interfaces():
    add = "(echo 127.0.1.1 $(hostname); cat /etc/hosts) > /run/disk/new"
    with Lab(2) as lab:
        lab.run(["sh", "-c", f"{add}; cat /run/disk/new > /etc/hosts"])
        lab.save("meet.py", MEET)
        variables = "RANK={node} WORLD_SIZE=2 MASTER_ADDR=10.13.0.1"
        printed = stdout_lines(lab.run(f"env {variables} python /run/shared/meet.py"))
    both = ["eth0 works", "eth9 Unable to find address"]
    for node in ("node0", "node1"):
        check(printed[node], ["(not set) connectFullMesh failed", *both], node)
    links = {
        "eth0: node1 has told its address, 10.13.0.2, and node0 finds it there.": [
            ("node0/rank 0", "node1/rank 1")
        ],
        "Not set: node1 has told 127.0.1.1, which on node0 is node0 itself.": [
            ("node0/rank 0", "node0/127.0.1.1")
        ],
    }
    machines = {"node0": ["rank 0", "127.0.1.1"], "node1": ["rank 1", "127.0.1.1"]}
    return Connections(printed, machines, links)


# %%
if __name__ == "__main__":
    run(interfaces, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# With `eth0` alone. An interface that does not exist is an error at once, on the machine that lacks
# it. Without the variable, node0 connects to 127.0.1.1, which is node0 itself, where no process
# listens, so it usually says "Connection refused, remote=[127.0.1.1]". node1 waits for five times
# the time limit, and then only says "Connect timeout", which is why you should read the messages of
# all machines.
#
# </details>

# %% [markdown]
# ### Who opens which ports
#
# With the right address, a connection can still fail at a firewall, which must let through what the
# ranks open. This program asks the system while its ranks are connected: `ss -tln` lists the
# sockets that listen.

# %%
PORTS = r"""
import subprocess
import torch.distributed as dist

dist.init_process_group("gloo")
lines = subprocess.run(["ss", "-Htln"], capture_output=True, text=True).stdout.splitlines()
for line in lines:
    address, _, port = line.split()[3].rpartition(":")
    print(address, "29500" if port == "29500" else "a port that was free")
dist.barrier()
dist.destroy_process_group()
"""

# %% [markdown]
# **Predict first.** One rank runs on each machine, and the store is on node0. Does node1 open a
# port, too?


# %%
@in_lab
def who_opens_which_ports():
    with Lab(2) as lab:
        lab.save("ports.py", PORTS)
        variables = "RANK={node} WORLD_SIZE=2 MASTER_ADDR=node0 MASTER_PORT=29500"
        printed = stdout_lines(lab.run(f"env {variables} python /run/shared/ports.py"))
    expected = {
        "node0": ["* 29500", "10.13.0.1 a port that was free"],
        "node1": ["10.13.0.2 a port that was free"],
    }
    check(printed, expected, "ports that listen")
    return printed


# %%
if __name__ == "__main__":
    run(who_opens_which_ports, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Yes. Each rank opens one port of gloo, on the interface that it has chosen. The system chooses the
# number from `net.ipv4.ip_local_port_range`, so you cannot write it into a firewall's list
# beforehand: you must open the whole range. Rank 0's process also opens the store's port, 29500, on
# all interfaces.
#
# </details>

# %%
STEPS = [interfaces, who_opens_which_ports]

# %% [markdown]
# ## On your cluster
#
# Before the first job, type three commands on each machine:
#
# ```sh
# ip -br addr                  # the interfaces and their addresses
# getent hosts $(hostname)     # what gloo takes: it must not begin with 127
# ping -c 1 node0              # whether the machine of the store can be reached
# ```
#
# Then set `GLOO_SOCKET_IFNAME` to the interface of the fast network. NCCL has a variable of its
# own, `NCCL_SOCKET_IFNAME` ([its
# manual](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html)).

# %% [markdown]
# ## Pitfalls
#
# - The interface may have another name on each machine, so set the variable on each.
# - `GLOO_SOCKET_IFNAME=lo` works on one machine, and fails on two.
# - If only the store's port is open, the ranks meet at the store and then wait for five times the
#   time limit: [what goes wrong between machines](../../docs/machines.md) has this message and
#   those of other closed ports.
# - None of these ports asks for a password, so use a network that you trust.

# %% [markdown]
# ## Read on
#
# - [The environment variables](https://docs.pytorch.org/docs/stable/distributed.html) of
#   torch.distributed.
# - [`barrier`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.barrier)
# - [`init_process_group`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.init_process_group)
#
# The machines are connected. Next lesson: [cables](../../notebooks/machines/cables.ipynb), how much
# goes through the cable between them.
