# %% [markdown]
"""
# slow_machine

A collective is as fast as its slowest member. One bad cable slows all machines, and every rank
measures the same.

You will see three machines that become slow together because of one of them, a test of pairs that
finds it, what `diagnose` finds, and what lost packets do to a sum.

    python lessons/machines/slow_machine.py
    collectives run machines/slow_machine
"""

# %%
from collectives import Lab, check, in_lab, run, stdout_lines

# %% [markdown]
# ## The idea
#
# In an `all_reduce`, each rank passes on what it gets from its neighbour. If one of them sends
# slowly, all wait. What tells who is slow is a test in which only two machines take part.
#
# ## In the lab
#
# All cables carry 200 Mbit/s. In the middle of this program, node2 sets its own cable to a tenth of
# that with `tc`, as a wrong setting of a switch does. Before and after, each rank measures an
# `all_reduce`, and all pairs of ranks send to each other.

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
# **Predict first.** Which ranks measure a slower `all_reduce`, and which pairs are slower?


# %%
@in_lab
def slow_machine():
    with Lab(3, rate="200mbit") as lab:
        lab.save("pairs.py", PROGRAM)
        variables = "RANK={node} WORLD_SIZE=3 MASTER_ADDR=node0 MASTER_PORT=29500"
        printed = stdout_lines(lab.run(f"env {variables} python /run/shared/pairs.py"))
    lines = [line for lines in printed.values() for line in lines]
    times = {line.partition(":")[0]: float(line.split()[-1]) for line in lines}
    slower = {name: times[name] > 3 for name in sorted(times)}
    right = {f"all_reduce on rank {rank}": True for rank in range(3)}
    right |= {"pair 0 and 1": False, "pair 0 and 2": True, "pair 1 and 2": True}
    check(slower, right, f"times as long as before: {times}")
    return [{"measured": name, "slower": "yes" if slow else "no"} for name, slow in right.items()]


# %%
if __name__ == "__main__":
    run(slow_machine)

# %% [markdown]
# <details><summary>Answer</summary>
#
# All ranks are slow, also 0 and 1, whose cables are good. Of the pairs, the one without node2 is as
# fast as before. node2 is in all that are slow: that is how to find it.
#
# </details>

# %% [markdown]
# ### A slow cable and a slow computer
#
# `collectives diagnose` in front of each machine's command knows which rank is in which call. In
# this training node1 has two troubles: first a slow cable, then slow code, which ends when it has
# been named. `--hang-after 5` makes diagnose speak when nothing has moved for 5 seconds.

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
    check(told, [where, "slow: rank 1 has not joined barrier #8 of group WORLD"], "diagnose")
    return {"diagnose": told[::-1]}


# %%
if __name__ == "__main__":
    run(slow_computer)

# %% [markdown]
# It names the slow code, with the machine and the line. While the cable is slow, all ranks are
# inside the same `all_reduce`: nobody is late, so there is nobody to name. A slow computer comes
# late to a call, and diagnose and the trace (`collectives run --trace`) show that.
#
# ### Lost packets
#
# A bad cable may also lose packets. TCP notices it and sends them again.

# %%
LOSSY = r"""
import os
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
right = True
for _ in range(64):  # of short messages: long ones are sent again now and then without a loss
    x = torch.arange(2**14)
    dist.all_reduce(x)
    right &= torch.equal(x, 2 * torch.arange(2**14))
header, values = [line.split() for line in open("/proc/net/snmp") if line.startswith("Tcp:")]
again = int(values[header.index("RetransSegs")])
print("right" if right else "wrong", again)
dist.barrier()
dist.destroy_process_group()
"""

# %% [markdown]
# **Predict first.** With a loss of 5 %, one packet of 20 does not arrive. Are some sums wrong?


# %%
@in_lab
def lost_packets():
    rows = []
    for loss in (None, "1%", "5%"):
        with Lab(2, loss=loss) as lab:
            lab.save("lossy.py", LOSSY)
            variables = "RANK={node} WORLD_SIZE=2 MASTER_ADDR=node0 MASTER_PORT=29500"
            printed = stdout_lines(lab.run(f"env {variables} python /run/shared/lossy.py"))
        words = [lines[0].split() for lines in printed.values()]
        check([right for right, _ in words], ["right", "right"], f"sums with loss={loss}")
        again = sum(int(count) for _, count in words)
        check(again > 60, loss is not None, f"{again} packets sent again with loss={loss}")
        rows.append({"loss": loss or "0%", "sums": "right", "sent again": "yes" if loss else "no"})
    return rows


# %%
if __name__ == "__main__":
    run(lost_packets)

# %% [markdown]
# <details><summary>Answer</summary>
#
# No. TCP numbers and checks what it carries, so a bad cable costs time and no digits. `nstat -az
# TcpRetransSegs` shows how many packets a machine has sent again: on a good network almost none.
#
# </details>

# %%
STEPS = [slow_machine, slow_computer, lost_packets]

# %% [markdown]
# ## On your cluster
#
# Save the program of the first step without the line that calls `tc`, and start it with one rank on
# each machine when nothing else runs. `ethtool eth0` shows the speed that a card has agreed on, `ip
# -s link show eth0` errors and drops.

# %% [markdown]
# ## Pitfalls
#
# - Measure several times and take the shortest: everything else on a machine only adds time.
# - A collective that takes minutes looks like one that hangs. If a job does hang, put [`collectives
#   diagnose`](../../docs/diagnosis.md) in front of its command.
# - A fast `barrier` proves nothing. It sends a few bytes, which a slow cable carries quickly.
#
# Back to [all chapters](../../README.md).
