# %% [markdown]
"""
# slow_machine: find the straggler, the slowest rank

A collective is as fast as its slowest member, and every rank measures the same slow call.

Yesterday a step took one second, today it takes ten. Nothing has failed, and every rank reports the
same slow `all_reduce`, so the measurement does not say which machine to repair. At the end of this
lesson you can: you find a slow cable by a test of pairs, and a slow computer by `diagnose`.

    python lessons/machines/slow_machine.py
    collectives run machines/slow_machine
"""

# %%
from collectives import Lab, check, in_lab, run, stdout_lines
from slow_pairs import SlowPairs

# %% [markdown]
# ## The idea
#
# In an `all_reduce`, each rank passes on what it gets from its neighbour. If one machine sends
# slowly, its neighbour receives slowly and passes on slowly, and so on, until all are as slow. To
# find the machine, measure calls in which not all take part: those of two ranks.
#
# ## A slow cable
#
# In this lab all cables carry 200 Mbit/s. In the middle of the program node2 sets its own cable to
# a tenth of that with `tc`, as a wrong setting of a switch would. Before and after, each rank times
# an `all_reduce`, and each pair of ranks times a message there and back.

# %%
PROGRAM = r"""
import os
import subprocess
import time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, n = dist.get_rank(), dist.get_world_size()
x = torch.ones(2**18)  # 1 MiB

def seconds(function):
    found = []
    for _ in range(3):
        dist.barrier()
        start = time.monotonic()
        function()
        found.append(time.monotonic() - start)
    return min(found)

def ping_pong(a, b):
    if rank == a:
        dist.send(x, dst=b)
        dist.recv(x, src=b)
    if rank == b:
        dist.recv(x, src=a)
        dist.send(x, dst=a)

def measured():
    found = {f"all_reduce on rank {rank}": seconds(lambda: dist.all_reduce(x))}
    for a, b in [(a, b) for b in range(n) for a in range(b)]:
        taken = seconds(lambda: ping_pong(a, b))
        if rank == a:
            found[f"pair {a} and {b}"] = taken
    return found

before = measured()
if os.uname().nodename == "node2":
    # subtle: tbf never sends a packet longer than its burst, and one of 64 KiB may be waiting
    slow = "tc qdisc replace dev eth0 root tbf rate 20mbit burst 128k latency 1s"
    subprocess.run(slow.split(), check=True)
for name, after in measured().items():
    print(f"{name}: {after} s, times {after / before[name]}")
dist.barrier()
dist.destroy_process_group()
"""

# %% [markdown]
# **Predict first.** node2 runs rank 2. On which of the four ranks does the `all_reduce` take longer
# than before, and which of the six pairs are slower?


# %%
@in_lab
def slow_machine():
    with Lab(4, rate="200mbit") as lab:
        lab.save("pairs.py", PROGRAM)
        variables = "RANK={node} WORLD_SIZE=4 MASTER_ADDR=node0 MASTER_PORT=29500"
        printed = stdout_lines(lab.run(f"env {variables} python /run/shared/pairs.py"))
    lines = [line for lines in printed.values() for line in lines]
    times = {line.partition(":")[0]: float(line.split()[-1]) for line in lines}
    slower = {name: time > 3 for name, time in sorted(times.items())}
    pairs = [(a, b) for a in range(4) for b in range(a + 1, 4)]
    right = {f"all_reduce on rank {rank}": True for rank in range(4)}
    right |= {f"pair {a} and {b}": 2 in (a, b) for a, b in pairs}
    check(slower, right, f"times as long as before: {times}")
    rows = [{"measured": name, "slower": "yes" if slow else "no"} for name, slow in right.items()]
    return SlowPairs(rows, [True] * 4, [pair for pair in pairs if 2 in pair])


# %%
if __name__ == "__main__":
    run(slow_machine, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# All four ranks measure a slower `all_reduce`, also the three whose cables are good. Of the pairs,
# only those with rank 2 are slower: in the picture they are one row and one column, and where the
# two cross stands the machine to repair.
#
# </details>

# %% [markdown]
# ### A slow computer
#
# With good cables and a slow computer all pairs are fast, and the training is still slow. Such a
# rank computes for longer, so it comes late to a call, and the ranks that wait for it can name it.
# `collectives diagnose`, in front of each machine's command, knows which rank is in which call.
#
# In the next training node1 has both troubles. First its cable is slow, for eight calls; then its
# code is slow, until it has been named. `--hang-after 5` makes `diagnose` report when nothing has
# moved for 5 seconds.

# %%
TRAIN = r"""
import os
import subprocess
import time
import torch
import torch.distributed as dist

open(f"/run/shared/{os.environ['RANK']} is here", "w").close()
while not all(os.path.exists(f"/run/shared/{rank} is here") for rank in (0, 1)):
    time.sleep(0.1)  # importing torch takes longer on one machine than on the other
dist.init_process_group("gloo")
x = torch.ones(2**18)  # 1 MiB
if dist.get_rank() == 1:
    slow = "tc qdisc replace dev eth0 root tbf rate 20mbit burst 128k latency 1s"
    subprocess.run(slow.split(), check=True)
start = time.monotonic()
for _ in range(8):
    dist.all_reduce(x)
print(time.monotonic() - start)
while dist.get_rank() == 1 and not os.path.exists("/run/shared/named"):
    time.sleep(0.1)  # stands for code that computes for long
dist.barrier()
dist.destroy_process_group()
"""

# %% [markdown]
# **Predict first.** Which of the two troubles does `diagnose` report?


# %%
@in_lab
def slow_computer():
    def hear(machine, stream, line):
        if "rank  1  computing" in line:
            lab.save("named", "")

    with Lab(2, rate="200mbit") as lab:
        lab.save("train.py", TRAIN)
        variables = "RANK={node} WORLD_SIZE=2 MASTER_ADDR=node0 MASTER_PORT=29500"
        diagnose = "python -m collectives diagnose --hang-after 5 --"
        command = f"env {variables} {diagnose} python /run/shared/train.py"
        done = lab.run(command, on_line=hear)
    seconds = [float(lines[0]) for lines in stdout_lines(done).values()]
    check([taken > 2 for taken in seconds], [True, True], f"seconds of all_reduce: {seconds}")
    lines = {" ".join(line.split()) for one in done for line in one.stderr.splitlines()}
    told = sorted(line for line in lines if line.startswith(("slow", "hang", "rank 1")))
    where = "rank 1 computing /run/shared/train.py:21 on node1"
    check(told, [where, "slow: rank 1 has not joined barrier #9 of group WORLD"], "diagnose")
    return {"diagnose": told[::-1]}


# %%
if __name__ == "__main__":
    run(slow_computer, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# The slow code, with the rank, the machine and the line. While the cable is slow, both ranks are
# inside the same `all_reduce`: neither is late, so there is none to name. That is why you need both
# tests, the pairs for cables and `diagnose` for computers.
#
# </details>

# %%
STEPS = [slow_machine, slow_computer]

# %% [markdown]
# ## On your cluster
#
# Save the program of the first step without the lines that call `tc`, and start it with one rank on
# each machine when nothing else runs. Then look at the machine that it names: `ethtool eth0` shows
# the speed that its card has agreed on, `ip -s link show eth0` counts errors and drops, and `nstat
# -az TcpRetransSegs` the packets that were sent again.

# %% [markdown]
# ## Pitfalls
#
# - Measure several times and use the shortest time, because everything else on a machine only adds
#   time.
# - A collective that takes minutes looks like one that hangs. If a job does hang, put [`collectives
#   diagnose`](../../docs/diagnosis.md) in front of its command.
# - A fast `barrier` proves nothing: it sends a few bytes, which a slow cable carries quickly, too.
# - A cable that loses packets is slow, and the sums are right, because TCP sends the packets again.
#
# This is the last lesson about machines. Back to [all chapters](../../README.md).
