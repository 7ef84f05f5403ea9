# %% [markdown]
"""
# cables: how many bytes go through each cable

How many bytes an `all_reduce` sends through the cables depends on the algorithm, and on which rank
is on which machine.

Your job runs on two machines, and the step takes four times as long as it should. The cable between
the machines is slow, but it was slow before. Only the order of the ranks has changed. At the end of
this lesson you can say how many bytes cross a cable, count them at the network interface, and start
your ranks so that few of them do.

    python lessons/machines/cables.py
    collectives run machines/cables
"""

# %%
from collectives import Lab, check, in_lab, run, stdout_lines
from collectives.pictures.cables import Cables, Wiring
from collectives.lab import slurm

# %% [markdown]
# ## The idea
#
# gloo sums a large tensor around a ring: rank r sends to rank r + 1, and the last rank to the
# first. Each rank sends `2 (n - 1) / n` times the tensor, which is 7.3 MB with 8 ranks and 4 MiB.
# Sending costs little if the next rank is on the same machine, but much if a cable lies between the
# two. So count the places where the ring leaves a machine.
#
# With 4 ranks on each of 2 machines:
#
# | placement | ring | it leaves node0 |
# |---|---|---|
# | in blocks | ranks 0, 1, 2, 3 on node0, the others on node1 | once |
# | round-robin | ranks 0, 2, 4, 6 on node0, the others on node1 | 4 times |
#
# A hierarchical `all_reduce` sends the same bytes in both placements. Each machine has one cable,
# so it is enough that one rank of each machine uses it, the leader. The ranks of each machine
# reduce to their leader, the leaders do an `all_reduce`, and each leader broadcasts the result on
# its machine. With 2 leaders, each of them sends 2 (2 - 1) / 2 = 1 times the tensor.
#
# The lesson [hierarchical](../../notebooks/algorithms/hierarchical.ipynb) has this algorithm and
# another one. Here the ring over all ranks is called flat.

# %% [markdown]
# ## In the lab
#
# The cables of this lab carry 200 Mbit/s, and a message takes 2 ms from machine to machine. The
# ranks meet twice, first in blocks and then round-robin, and each time they sum 4 MiB with both
# algorithms.

# %%
PROGRAM = """
import os
import time
import torch
import torch.distributed as dist

node, local = int(os.environ["GROUP_RANK"]), int(os.environ["LOCAL_RANK"])
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
store = dist.TCPStore(*address, is_master=False)  # torchrun holds it


def flat_sum(x, here, leaders):
    dist.all_reduce(x)


def hierarchical_sum(x, here, leaders):
    dist.reduce(x, group_dst=0, group=here)
    if dist.get_group_rank(here, dist.get_rank()) == 0:
        dist.all_reduce(x, group=leaders)
    dist.broadcast(x, group_src=0, group=here)


def bytes_sent():  # since the machine is on, by all of its processes
    (line,) = [line for line in open("/proc/net/dev") if "eth0:" in line]
    return int(line.split()[9])


def measure(algorithm, *groups):
    sent, seconds = [], []
    for _ in range(4):
        x = torch.ones(2**20)  # 4 MiB
        dist.barrier()
        before, start = bytes_sent(), time.monotonic()
        algorithm(x, *groups)
        dist.barrier()
        sent.append(bytes_sent() - before)
        seconds.append(time.monotonic() - start)
    assert (x == 8).all()
    return min(sent), min(seconds)  # other work on the machine only adds to them


for order in ("blocks", "round-robin"):
    rank = 4 * node + local if order == "blocks" else node + 2 * local
    dist.init_process_group(
        "gloo", store=dist.PrefixStore(order, store), rank=rank, world_size=8
    )
    machines = [[0, 1, 2, 3], [4, 5, 6, 7]] if order == "blocks" else [[0, 2, 4, 6], [1, 3, 5, 7]]
    here = [dist.new_group(ranks) for ranks in machines][node]
    leaders = dist.new_group([ranks[0] for ranks in machines])
    for algorithm in (flat_sum, hierarchical_sum):
        sent, seconds = measure(algorithm, here, leaders)
        if local == 0:
            print(order, algorithm.__name__, sent, seconds)
    dist.destroy_process_group()
"""

# %% [markdown]
# **Predict first.** When the ranks sit round-robin and not in blocks, how many MB does each of the
# two algorithms send through the cable of node0?


# %%
@in_lab
def cables():
    with Lab(2, rate="200mbit", delay="2ms") as lab:
        lab.save("sums.py", PROGRAM)
        meeting = "--nnodes 2 --nproc-per-node 4 --node-rank {node} --master-addr node0"
        printed = stdout_lines(lab.run(f"torchrun {meeting} /run/shared/sums.py"))
    found = {tuple(line.split()[:2]): line.split()[2:] for line in printed["node0"]}
    sent = {key: int(values[0]) for key, values in found.items()}
    seconds = {key: float(values[1]) for key, values in found.items()}
    tensor = 4 * 2**20
    flat = 2 * (8 - 1) / 8 * tensor  # what each rank of the ring sends
    formulas = {("blocks", "flat_sum"): flat, ("round-robin", "flat_sum"): 4 * flat}
    expected = {key: formulas.get(key, tensor) for key in sorted(found)}
    wrong = {key: sent[key] for key in found if abs(sent[key] / expected[key] - 1) > 0.05}
    check(wrong, {}, "bytes on the cable of node0, within 5 %")
    best = seconds["blocks", "hierarchical_sum"]
    check(best > 0.9 * 8 * tensor / 200e6, True, f"the rate, seconds: {seconds}")
    check(seconds["round-robin", "flat_sum"] > 3 * best, True, f"seconds: {seconds}")
    rows = [
        {"ranks": order, "algorithm": algorithm, "MB from node0 to node1": f"{size / 1e6:.1f}"}
        for (order, algorithm), size in expected.items()
    ]
    ring = [(rank, (rank + 1) % 8) for rank in range(8)]
    to_leaders = [(rank, rank // 4 * 4) for rank in range(8) if rank % 4]
    by_leaders = [*to_leaders, (0, 4), (4, 0), *((b, a) for a, b in to_leaders)]
    panels = [
        Wiring("flat, in blocks", ([0, 1, 2, 3], [7, 6, 5, 4]), ring, flat / 1e6),
        Wiring("flat, round-robin", ([0, 2, 4, 6], [1, 3, 5, 7]), ring, 4 * flat / 1e6),
        Wiring("hierarchical, in blocks", ([0, 1, 2, 3], [4, 5, 6, 7]), by_leaders, tensor / 1e6),
    ]
    return Cables(rows, panels)


# %%
if __name__ == "__main__":
    run(cables, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# The flat ring sends 29.4 MB in place of 7.3, because each of the 4 ranks of node0 now sends
# everything through the cable. The hierarchical `all_reduce` sends 4.2 MB in both placements,
# because it has one leader on each machine either way.
#
# </details>
#
# The table shows what the formulas say. The bytes counted at the interface are a few more, because
# packets have headers, and now and then one is sent again, so the step checks that they differ by
# less than 5 %. It also demands that the flat ring in round-robin takes at least 3 times as long as
# the hierarchical sum. It demands nothing of the flat ring in blocks, which sends less than twice
# as much as the leaders, because a busy machine can hide so small a difference.
#
# Not all of the ring's time is bandwidth. In each of its 2 (n - 1) rounds a message must cross a
# cable, which adds a latency of 2 ms to every round, in either placement.

# %% [markdown]
# ### Who decides who sits where
#
# So the traffic depends on the placement, and the placement on the launcher. torchrun always
# numbers in blocks, machine by machine, but Slurm lets you choose, by the option `-m`:

# %% [markdown]
# **Predict first.** Slurm starts 8 ranks on 2 machines, with `-m cyclic`. On which machine is rank
# 5?


# %%
@in_lab
def who_sits_where():
    found = []
    with Lab(2) as lab:
        slurm.start(lab)
        for order in ("block", "cyclic"):
            command = ["srun", "-N2", "--ntasks-per-node=4", "-m", order]
            command += ["sh", "-c", 'echo "$SLURM_PROCID $(hostname)"']
            (done,) = lab.run(command, on=["login"])
            pairs = sorted(line.split() for line in done.stdout.splitlines())
            row = {"command": f"srun -m {order}"}
            row |= {
                node: [int(r) for r, name in pairs if name == node] for node in ("node0", "node1")
            }
            found.append(row)
    ranks = list(range(8))
    block, cyclic = [ranks[:4], ranks[4:]], [ranks[0::2], ranks[1::2]]
    check([[row["node0"], row["node1"]] for row in found], [block, cyclic], "node0 and node1")
    return found


# %%
if __name__ == "__main__":
    run(who_sits_where, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# On node1, because `cyclic` deals the ranks like cards, one to each machine in turn, which is
# round-robin again. So one word in a script decides whether four times as many bytes go through the
# cables.
#
# </details>

# %%
STEPS = [cables, who_sits_where]

# %% [markdown]
# ## On your cluster
#
# Count the bytes of your own job with `ip -s link show eth0`, before and after. (InfiniBand
# bypasses the kernel, and counts in `/sys/class/infiniband/*/ports/*/counters/port_xmit_data`, in
# units of 4 bytes.) Let each rank print its number and its host name once, and see whether
# neighbours are on the same machine.
#
# gloo uses the ranks in the order of their numbers, so their placement is up to you. NCCL looks at
# the machines and their links, and builds its rings and trees accordingly. With `NCCL_DEBUG=INFO`
# it prints what it has found ([its
# manual](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html)). But it cannot help a
# small group whose ranks you have put on different machines.

# %% [markdown]
# ## Pitfalls
#
# - `new_group` is a collective, so all ranks make all groups in the same order, also those to which
#   they do not belong ([groups](../../notebooks/mistakes/groups.ipynb)).
# - On one machine, or for small tensors, the hierarchical algorithm is slower, because it has three
#   calls.
# - Hierarchical and flat add in different orders, so the last bits of floating-point sums differ.
# - An `all_reduce` of the leaders alone keeps only one network card of each machine busy. If there
#   are several, use the form of [hierarchical](../../notebooks/algorithms/hierarchical.ipynb) in
#   which every rank works.

# %% [markdown]
# ## Read on
#
# - [Algorithms](../../docs/algorithms.md) of collectives, and what they send.
# - [`all_reduce`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_reduce)
# - [`barrier`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.barrier)
# - [`broadcast`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.broadcast)
# - [`get_group_rank`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.get_group_rank)
# - [`get_rank`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.get_rank)
# - [`init_process_group`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.init_process_group)
# - [`new_group`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.new_group)
# - [`PrefixStore`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.PrefixStore)
# - [`reduce`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.reduce)
# - [`TCPStore`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.TCPStore)
#
# In this lesson the machines stayed. Next lesson:
# [elastic](../../notebooks/machines/elastic.ipynb), in which they go and come.
