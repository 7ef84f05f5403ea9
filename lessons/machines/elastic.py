# %% [markdown]
"""
# elastic

A rank, an agent or a machine goes, or a machine comes. torchrun starts the training again with who
is left, and it continues from its checkpoint.

You will see seven accidents on two machines: for each, with how many ranks the training goes on,
how soon, and that it ends with the parameters of a training that nobody disturbed.

    python lessons/machines/elastic.py
    collectives run machines/elastic
"""

# %%
import subprocess
import time
from collectives import check
from collectives.launcher.hosts import Lab
from collectives.lesson import in_lab, run

# %% [markdown]
# ## The idea
#
# No collective survives the loss of a rank. So everybody is stopped, the agents meet again at the
# store, and they start a new world with new ranks. It may have another size: `--nnodes 1:2` means
# that one machine is enough and that two are the most.
#
# Three parts must outlive the accident:
#
# 1. **The store**, at which the agents meet. Here it is on a machine of its own.
# 2. **The checkpoint**, on a disk that all machines see.
# 3. **The training's result** must not depend on the world size. Each rank takes its share of each
#    batch. The gradients are rounded to multiples of 2**-40: then sums are exact in any order, and
#    the parameters are equal to the last bit with 1 rank or 2.
#
# Why an accident is noticed late: nobody tells a machine that another one is gone. Each agent sends
# a sign of life to the store, and the others count how many are missing. Ranks notice it in their
# next collective, some at its time limit.

# %% [markdown]
# ## In the lab
#
# This is the training. Rank 0 saves after every 10 steps and writes a line for each step. The steps
# take longer until the accident is over, so that it finds the training at work.

# %%
TRAIN = r"""
import datetime
import os
import sys
import time
from pathlib import Path
import torch
import torch.distributed as dist

folder = Path("/run/shared", sys.argv[1])
Path("/run/disk/worker").write_text(str(os.getpid()))
Path("/run/disk/agent").write_text(str(os.getppid()))
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=5))
rank, n = dist.get_rank(), dist.get_world_size()

random = torch.Generator().manual_seed(0)
inputs = torch.randn(12, 4, generator=random, dtype=torch.float64)
targets = inputs.sum(1)
begin, weights = 0, torch.zeros(4, dtype=torch.float64)
if (folder / "checkpoint.pt").exists():
    begin, weights = torch.load(folder / "checkpoint.pt")

for step in range(begin + 1, 1201):
    gradient = torch.zeros(4, dtype=torch.float64)
    for x, y in zip(inputs[rank::n], targets[rank::n]):
        gradient += (2**40 * (x @ weights - y) * x).round() / 2**40
    dist.all_reduce(gradient)
    weights -= 1e-4 * gradient
    if rank == 0 and step % 10 == 0:
        torch.save([step, weights], folder / "draft")
        os.replace(folder / "draft", folder / "checkpoint.pt")
    if rank == 0:
        with (folder / "log").open("a") as log:
            log.write(f"{n} {begin} {step} {time.time()}\n")
    if not (folder / "hurry").exists():
        time.sleep(0.05)
dist.destroy_process_group()
"""

# %% [markdown]
# The store is on the host `login`, and this is the command on each machine that trains. The
# variable in front is the cure for a bug: without it torch 2.13 does not survive a restart
# ([failover](../../notebooks/training/failover.ipynb) tells why). The four numbers at the end make
# this lesson quick: an agent sends a sign of life each second, and is given up after 3 seconds.

# %%
STORE = """
import signal
import torch.distributed as dist

store = dist.TCPStore("0.0.0.0", 29400, is_master=True, wait_for_workers=False)
print("open", flush=True)
signal.pause()
"""
TORCHRUN = """
TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 exec torchrun --nnodes 1:2 --nproc-per-node 1 --max-restarts 3
    --rdzv-backend c10d --rdzv-endpoint $STORE:29400 --rdzv-id $JOB --rdzv-conf
    join_timeout=60,last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3
    /run/shared/train.py $JOB 2> /run/shared/$JOB/node{node}.err
"""


# %% [markdown]
# The rest of the code starts agents, reads the log, and lets an accident happen when the ranks have
# made at least 15 steps.


# %%
def sh(lab, node, command):
    (done,) = lab.run(["sh", "-c", command], on=[node])
    return done.stdout


def start_agent(lab, node, job, store="login"):
    command = " ".join(TORCHRUN.split()).replace("$JOB", job).replace("$STORE", store)
    return lab.start(node, ["sh", "-c", command], stdout=subprocess.DEVNULL)


def wait_for(lab, job, condition, limit=100):
    """The log, when its last line meets the condition: ranks, begin, step, time."""
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        lines = sh(lab, "login", f"cat /run/shared/{job}/log 2> /dev/null").splitlines()
        found = [[float(word) for word in line.split()] for line in lines]
        if found and condition(*found[-1]):
            return found
        time.sleep(0.1)
    raise TimeoutError(f"{job}: {sh(lab, 'login', f'tail /run/shared/{job}/*')}")


def start(lab, job, nodes, store="login"):
    sh(lab, "login", f"mkdir /run/shared/{job}")
    return [start_agent(lab, node, job, store) for node in nodes]


def make_ready(lab):
    lab.save("train.py", TRAIN)
    store = lab.start("login", ["python", "-c", STORE], stdout=subprocess.PIPE, text=True)
    check(store.stdout.readline(), "open\n", "TCPStore")
    store.stdout.close()
    sh(lab, "login", "mkdir /run/shared/undisturbed; touch /run/shared/undisturbed/hurry")
    alone = "RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500"
    sh(lab, 0, f"{alone} python /run/shared/train.py undisturbed")


def wait_until_at_work(lab, job, ranks):
    return wait_for(lab, job, lambda n, begin, step, _: n == ranks and step > begin + 15)[-1]


def survive(lab, job, accident, ranks, happens):
    """Let the accident happen to so many ranks, and see how the job goes on: a row of the table."""
    before = wait_until_at_work(lab, job, ranks)
    moment = time.time()
    happens()
    log = wait_for(lab, job, lambda n, begin, *_: begin > before[1])
    last = [line for line in log if line[1] == before[1]][-1]
    again = log[log.index(last) + 1]
    check(last[2] - again[1] < 10, True, "made again: no more steps than since the checkpoint")
    seconds = {"last step": last[-1] - moment, "seconds": again[-1] - moment}
    return {"accident": accident, "ranks before": ranks, "after": int(again[0]), **seconds}


def finish(lab, job, agents, rows):
    """Let the job come to its end. The rows, if its parameters are those without an accident."""
    sh(lab, "login", f"touch /run/shared/{job}/hurry")
    wait_for(lab, job, lambda n, begin, step, _: step == 1200)
    for agent in agents:
        lab.kill(agent)
    compare = f"cd /run/shared; cmp {job}/checkpoint.pt undisturbed/checkpoint.pt && echo same"
    check(sh(lab, "login", compare), "same\n", f"{job}: the parameters")
    return rows


def shown(rows):
    names = "accident", "ranks before", "after"
    return [{name: row[name] for name in names} | {"parameters": "equal"} for row in rows]


# %% [markdown]
# ### Processes die
#
# In one training, the worker of node1 gets a signal, and later its agent. SIGTERM is what a cluster
# sends when it needs a machine: the agent tells the store that it leaves.


# %%
def processes_die(lab):
    make_ready(lab)
    agents = start(lab, "die", [0, 1])
    worker, agent = "$(cat /run/disk/worker)", "$(cat /run/disk/agent)"
    accidents = [("killed_worker", 2, lambda: sh(lab, 1, f"kill -9 {worker}"))]
    accidents += [("terminated_agent", 2, lambda: sh(lab, 1, f"kill {agent}"))]
    rows = [survive(lab, "die", *accident) for accident in accidents]
    return finish(lab, "die", agents, rows)


@in_lab
def elastic():
    with Lab(2) as lab:
        rows = processes_die(lab)
    check([row["after"] for row in rows], [2, 1], "ranks after the accidents")
    return shown(rows)


# %% [markdown]
# **Predict first.** Two ranks train on two machines, and the worker of node1 is killed with
# SIGKILL. With how many ranks does the training go on? Write the number down.

# %%
if __name__ == "__main__":
    run(elastic)

# %% [markdown]
# <details><summary>Answer</summary>
#
# With 2: the agent of node1 lives. It sees that its worker has died, and both agents meet again.
# Rank 0 has noticed it, too: its `all_reduce` raised `Connection reset by peer`. If an agent is
# terminated, its machine leaves, and the training goes on with 1 rank.
#
# Each time it continues from the last checkpoint. The step checks that fewer than 10 steps are made
# again, and at the end that the parameters are those of the undisturbed training, bit for bit.
#
# </details>

# %% [markdown]
# ### Machines go and come
#
# In the second training node1 loses its power. Then it is back, with an empty disk, and somebody
# starts an agent there. At last somebody pulls its cable.


# %%
def machines_change(lab):
    make_ready(lab)
    agents = start(lab, "change", [0, 1])

    def come():
        lab.power_on(1)
        agents.append(start_agent(lab, 1, "change"))

    accidents = [("machine_without_power", 2, lambda: lab.power_off(1))]
    accidents += [("new_machine", 1, come), ("pulled_cable", 2, lambda: lab.unplug(1))]
    rows = [survive(lab, "change", *accident) for accident in accidents]
    return finish(lab, "change", agents, rows)


@in_lab
def machines_go_and_come():
    with Lab(2) as lab:
        rows = machines_change(lab)
    check([row["after"] for row in rows], [1, 2, 1], "ranks after the accidents")
    return shown(rows)


# %% [markdown]
# **Predict first.** With how many ranks does the training go on after each of the three? Write
# three numbers down.

# %%
if __name__ == "__main__":
    run(machines_go_and_come)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 1, 2 and 1. Power and cable look the same to node0: silence. Its rank waits in `all_reduce` for
# the time limit of gloo, here 5 s, and by default 30 minutes. Only then does the agent learn that
# something is wrong. So choose `timeout` in `init_process_group` with care.
#
# For a new machine nothing has failed. The agents see it at the store, and restart on their own.
# That costs all steps since the last checkpoint.
#
# </details>

# %% [markdown]
# ### An agent that can tell nobody
#
# SIGKILL leaves an agent no time to say anything. In the first job the store is on `login`. In the
# second job the agent that is killed also holds the store: `--rdzv-endpoint node0:29400` asks for
# that, and many scripts do. After the accident, somebody types the command again, with another
# store.


# %%
def agents_are_killed(lab):
    kill = "kill -9 $(cat /run/disk/agent)"
    make_ready(lab)
    agents = start(lab, "killed_agent", [0, 1])
    wait_until_at_work(lab, "killed_agent", 2)
    sh(lab, 1, kill)
    row = {"accident": "killed_agent", "ranks before": 2, "after": 2}
    rows = finish(lab, "killed_agent", agents, [row])

    agents = start(lab, "killed_store", [0, 1], store="node0")

    def happens():
        sh(lab, 0, kill)
        check(agents[1].wait(60), 1, "the exit status of torchrun on node1")
        said = sh(lab, 1, "grep RendezvousConnectionError /run/shared/killed_store/node1.err")
        check(said != "", True, "RendezvousConnectionError")
        agents.append(start_agent(lab, 1, "killed_store"))

    row = survive(lab, "killed_store", "killed_store", 2, happens)
    return rows + finish(lab, "killed_store", agents, [row])


@in_lab
def agents_that_say_nothing():
    with Lab(2) as lab:
        rows = agents_are_killed(lab)
    check([row["after"] for row in rows], [2, 1], "ranks after the accidents")
    return shown(rows)


# %% [markdown]
# **Predict first.** The agent of node1 is killed, its worker is not, and nobody restarts anything.
# With how many ranks does the first training end? Write the number down.

# %%
if __name__ == "__main__":
    run(agents_that_say_nothing)

# %% [markdown]
# <details><summary>Answer</summary>
#
# With 2. Nobody notices: the worker of node1 trains on without its agent. (If the training took
# longer, the store would give the agent up at some time, 90 s in one measurement.)
#
# In the second job torchrun on node1 ends with `RendezvousConnectionError`. Elastic means that
# agents may come and go, but the store may not. The command that is typed again continues from the
# checkpoint, here with node1 alone. If the machine of the store loses its power, nothing ends: in
# our try torchrun on node1 still waited after a minute.
#
# </details>

# %%
STEPS = [elastic, machines_go_and_come, agents_that_say_nothing]

# %% [markdown]
# ## On your cluster
#
# Let the store run on a machine that does not train:
# [Several machines](../../docs/clusters.md#torchrun-with-the-rendezvous-on-a-third-machine) has the
# program. Leave out `--rdzv-conf`, or choose longer times than here. If the system is busy, agents
# that are given up after 3 seconds may be alive. By default an agent sends a sign of life every 5
# seconds, and is given up after 3 of them, and agents wait 30 s for more machines than they need.
#
# This picture shows the times of these accidents as we measured them once, with these numbers and
# with torchrun's own. [What goes wrong between
# machines](../../docs/machines.md#how-soon-training-continues) has the command that measures them
# on your machine.
#
# ![When how many ranks trained, before and after each accident](../../docs/elastic_times.svg)

# %% [markdown]
# ## Pitfalls
#
# - Without `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1` the restart fails or hangs on torch 2.13, or it
#   works by luck: new ranks read the addresses of the dead ones
#   ([pytorch#135712](https://github.com/pytorch/pytorch/issues/135712)).
# - `--max-restarts` is 0 by default. Each agent counts its own failures. A new machine costs none.
# - `--nnodes 2` is not elastic: after the loss of a machine, the other one waits.
# - With `keep_alive_max_attempt=2` a busy machine was once given up though it was alive, and two
#   worlds wrote the same checkpoint.
# - A learning rate that depends on the world size, or shards of unequal weight, make the result
#   depend on the accidents. Here each gradient is a sum over the whole batch.
# - A program that sets its rank and world size by itself is not elastic. Read them after
#   `init_process_group`.

# %% [markdown]
# ## Read on
#
# - [failover](../../notebooks/training/failover.ipynb) kills ranks on one machine.
# - [torchrun](https://docs.pytorch.org/docs/stable/elastic/run.html), in PyTorch's documentation.
# - [`all_reduce`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_reduce)
# - [`get_rank`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.get_rank)
# - [`get_world_size`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.get_world_size)
# - [`init_process_group`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.init_process_group)
# - [`TCPStore`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.TCPStore)
#
# Next lesson: [slurm](../../notebooks/machines/slurm.ipynb), in which a scheduler starts the ranks.
