# %% [markdown]
"""
# slurm: srun, sbatch and torchrun on a cluster

On a cluster a scheduler starts the ranks, and queues a job again that lost a machine.

You seldom log in to the machines on which you train: you ask the scheduler for them, here Slurm,
and your program must find out from it who it is. At the end of this lesson you can start ranks with
`srun`, with and without torchrun, write a job that survives the loss of a machine, and have your
ranks warned before their time is over.

The lab runs a real Slurm on its machines.

    python lessons/machines/slurm.py
    collectives run machines/slurm
"""

# %%
import time
from collectives import Lab, check, in_lab, run, stdout_lines
from collectives.lab import slurm as scheduler
from connections import Connections

# %% [markdown]
# ## The idea
#
# Slurm has a controller, here on the host `login`, and a daemon on each machine. You use these
# commands:
#
# - `sbatch job.sh` queues a script. When machines are free, the script runs on the first of them.
# - `srun command` in that script runs the command on all machines of the job at once, as many times
#   as there are **tasks**. A task can be a rank, or an agent of torchrun that starts ranks.
# - `scancel` and `scontrol` end and change jobs; `squeue` and `sinfo` show them, and the machines.
#
# ## In the lab
#
# `scheduler.start` starts the daemons of Slurm, unchanged, on the machines of the lab. We call
# `srun` on `login`, where it asks for machines itself, and four tasks print what Slurm has put into
# their environment: `SLURM_PROCID`, `SLURM_LOCALID`, `SLURM_NODEID` and `SLURM_NTASKS`.

# %% [markdown]
# **Predict first.** Which of these four are `RANK` and `LOCAL_RANK` of torchrun? Which values do
# they have in the second task of node1?


# %%
@in_lab
def slurm():
    names = "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS"
    echo = " ".join(f"{name}=${name}" for name in names)
    with Lab(2) as lab:
        scheduler.start(lab)
        command = ["srun", "-N2", "--ntasks-per-node=2", "sh", "-c", f'echo "$(hostname): {echo}"']
        (done,) = lab.run(command, on=["login"])
    rows = [line.partition(": ") for line in sorted(done.stdout.splitlines())]
    found = {node: [line for name, _, line in rows if name == node] for node in ("node0", "node1")}
    expected = [
        f"SLURM_PROCID={2 * node + local} SLURM_LOCALID={local} SLURM_NODEID={node} SLURM_NTASKS=4"
        for node in (0, 1)
        for local in (0, 1)
    ]
    check(found, {"node0": expected[:2], "node1": expected[2:]}, "srun")
    daemons = {"node0/slurmd": (0, 1), "node1/slurmd": (2, 3)}
    links = {
        "srun asks the controller for machines.": [("login/srun", "login/slurmctld")],
        "srun asks their daemons to start tasks.": [("login/srun", daemon) for daemon in daemons],
        "Each daemon starts the ranks of its machine.": [
            (daemon, f"{daemon[:5]}/rank {rank}") for daemon in daemons for rank in daemons[daemon]
        ],
    }
    machines = {
        "node0": ["slurmd", "rank 0", "rank 1"],
        "login": ["srun", "slurmctld"],
        "node1": ["slurmd", "rank 2", "rank 3"],
    }
    return Connections(found, machines, links)


# %%
if __name__ == "__main__":
    run(slurm, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# `SLURM_PROCID` is the rank, 3, and `SLURM_LOCALID` the local rank, 1.
#
# </details>
#
# So a task knows its numbers, but no address. `init_process_group` reads `RANK`, `WORLD_SIZE`,
# `MASTER_ADDR` and `MASTER_PORT`, so a script for `srun python train.py` must set all four:
#
# ```sh
# export MASTER_ADDR=$(scontrol show hostnames | head -n 1) MASTER_PORT=29500
# export WORLD_SIZE=$SLURM_NTASKS
# srun sh -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID exec python train.py'
# ```
#
# A program can also read Slurm's names itself, as [train_ddp.py](../../examples/train_ddp.py) does.
# The other way starts one torchrun on each machine, and leaves the variables to it:
#
# ### torchrun under srun, in a batch script

# %%
SUM = """
import os
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
x = torch.tensor([10 ** int(os.uname().nodename[-1])])  # node0 adds 1, and node1 10
dist.all_reduce(x)
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {x.item()}\\n", end="", flush=True)
dist.destroy_process_group()
"""
TRAIN_JOB = r"""#!/bin/sh
#SBATCH --nodes 2
#SBATCH --ntasks-per-node 1
#SBATCH --output /run/shared/out
#SBATCH --error /run/shared/err
export MASTER=$(scontrol show hostnames | head -n 1)
srun torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d \
    --rdzv-endpoint $MASTER:29400 --rdzv-id $SLURM_JOB_ID /run/shared/sum.py
"""


# %%
@in_lab
def torchrun_under_srun():
    with Lab(2) as lab:
        scheduler.start(lab)
        lab.save("sum.py", SUM)
        lab.save("job.sh", TRAIN_JOB)
        stdout_lines(lab.run("sbatch --wait /run/shared/job.sh", on=["login"]))
        printed = stdout_lines(lab.run("cat /run/shared/out", on=["login"]))["node0"]
    check(printed, ["rank 0 of 2: 11", "rank 1 of 2: 11"], "sbatch")
    return {"login": printed}


# %%
if __name__ == "__main__":
    run(torchrun_under_srun)

# %% [markdown]
# Here the tasks are the agents, and each starts one rank. The usual mistake is `--ntasks-per-node
# 2` for two GPUs: then there are two agents on each machine, and `--nnodes 2` is wrong. So the
# number of GPUs belongs behind `--nproc-per-node`, and `--ntasks-per-node` stays 1.

# %% [markdown]
# ### A machine dies, and the job is queued again
#
# The job runs, and then one of its machines dies. With `#SBATCH --requeue`, Slurm puts the job back
# into the queue. The script then runs from its beginning, so it must find its own checkpoint. In
# place of a training, this job counts to 40 on two of three machines, and keeps the number in a
# file.

# %%
COUNT_JOB = r"""#!/bin/sh
#SBATCH --nodes 2
#SBATCH --ntasks-per-node 1
#SBATCH --requeue
#SBATCH --open-mode append
#SBATCH --output /run/shared/out
[ -e /run/shared/step ] && from="the checkpoint" || from="0"
echo "restart ${SLURM_RESTART_COUNT:-0}: on $SLURM_JOB_NODELIST, from $from"
srun sh /run/shared/count.sh && echo "done: step $(cat /run/shared/step)"
"""
COUNT = r"""
step=$(cat /run/shared/step || echo 0)
while [ $step -lt 40 ]; do
    step=$((step + 1))
    [ $SLURM_PROCID = 1 ] || { echo $step > /run/shared/step; echo $step >> /run/shared/steps; }
    [ $SLURM_RESTART_COUNT ] || sleep 1
done
"""

# %% [markdown]
# **Predict first.** The job runs on node0 and node1 when node1 loses its power. Does it go on with
# one machine?


# %%
def wait_until(lab, command, wanted):
    deadline = time.monotonic() + 100
    while wanted not in (found := lab.run(["sh", "-c", command], on=["login"])[0].stdout):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{command}: {found}")
        time.sleep(0.1)


@in_lab
def queued_again():
    with Lab(3) as lab:
        scheduler.start(lab)
        lab.save("count.sh", COUNT)
        lab.save("job.sh", COUNT_JOB)
        (sbatch,) = lab.run("sbatch --parsable /run/shared/job.sh", on=["login"])
        job = sbatch.stdout.strip()
        wait_until(lab, "cat /run/shared/step", "2")
        lab.power_off(1)
        wait_until(lab, "squeue --noheader --format %T", "PENDING")
        # Slurm would let a job that it has queued again wait for two minutes.
        lab.run(f"scontrol update jobid={job} StartTime=now", on=["login"])
        wait_until(lab, "cat /run/shared/out", "done")
        (out,) = lab.run("cat /run/shared/out", on=["login"])
        (begun,) = lab.run("grep -cx 1 /run/shared/steps", on=["login"])
    check(begun.stdout, "1\n", "how often step 1 was made")
    lines = [line for line in out.stdout.splitlines() if line.startswith(("restart", "done"))]
    expected = ["restart 0: on node[0-1], from 0"]
    expected += ["restart 1: on node[0,2], from the checkpoint", "done: step 40"]
    check(lines, expected, "a job that is queued again")
    return {"login": lines}


# %%
if __name__ == "__main__":
    run(queued_again, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# No: Slurm gives the job node2 in place of node1, and the script runs once more. An elastic
# torchrun would go on with one machine, but Slurm waits until it can give `--nodes 2`.
#
# </details>
#
# Slurm notices late, because it asks its machines only from time to time whether they answer, and
# gives one up after `SlurmdTimeout`, which is short in the lab. Until then the ranks on node0 wait.

# %% [markdown]
# ### Who is warned
#
# A dead machine gives no warning, but the end of your time does. `#SBATCH --signal=TERM@120` sends
# a signal 120 seconds before it, so that the ranks can save. With `B:TERM` Slurm sends the signal
# to the script alone. `scancel` has the same two ways, so we need not wait for the end: here the
# script gets USR1, and then we send TERM without `--batch`. Each rank has started a second process,
# as the workers of a `DataLoader` are.

# %%
RANK = r"""
import os
import signal

me = f"rank {os.environ['SLURM_PROCID']}"
worker = os.fork()
if worker == 0:
    me = f"worker of {me}"

def told(number, frame):
    print(f"{me}: {signal.Signals(number).name}\n", end="", flush=True)
    if number == signal.SIGTERM:
        if worker:
            os.wait()
        raise SystemExit

signal.signal(signal.SIGUSR1, told)
signal.signal(signal.SIGTERM, told)
open(f"/run/shared/{me} is ready", "w").close()
while True:
    signal.pause()
"""
WARNED_JOB = r"""#!/bin/sh
#SBATCH --nodes 2
#SBATCH --ntasks-per-node 1
#SBATCH --output /run/shared/out
trap 'echo "script: SIGUSR1"' USR1
trap 'echo "script: SIGTERM"' TERM
srun python /run/shared/rank.py
"""

# %% [markdown]
# **Predict first.** You send USR1 to save before the time is over. Does the script's trap run soon
# enough for that? And which of script, ranks and workers does TERM reach?


# %%
@in_lab
def who_is_warned():
    with Lab(2) as lab:
        scheduler.start(lab)
        lab.save("rank.py", RANK)
        lab.save("job.sh", WARNED_JOB)
        (sbatch,) = lab.run("sbatch --parsable /run/shared/job.sh", on=["login"])
        job = sbatch.stdout.strip()
        wait_until(lab, "ls /run/shared | grep -c ready", "4")
        lab.run(f"scancel --batch --signal=USR1 {job}", on=["login"])
        lab.run(f"scancel --signal=TERM {job}", on=["login"])
        wait_until(lab, "cat /run/shared/out", "script")
        (out,) = lab.run("cat /run/shared/out", on=["login"])
    said = "rank", "worker", "script"
    lines = [line for line in out.stdout.splitlines() if line.startswith(said)]
    lines[:4] = sorted(lines[:4])  # of the ranks and their workers
    expected = [f"{who} {rank}: SIGTERM" for who in ("rank", "worker of rank") for rank in (0, 1)]
    expected += ["script: SIGUSR1"]
    check(lines, expected, "signals")
    return {"login": lines}


# %%
if __name__ == "__main__":
    run(who_is_warned, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# No. USR1 goes to the script alone, whose shell waits for `srun` and runs its trap only when the
# ranks have ended, which is too late to save anything. TERM without `--batch` reaches both ranks
# and their workers, and not the script.
#
# </details>
#
# The workers are a trap. If one of them dies, its `DataLoader` raises an error in the rank, which
# then cannot save. So let them ignore the signal, as `ignore_stops` does in
# [train_ddp.py](../../examples/train_ddp.py).

# %%
STEPS = [slurm, torchrun_under_srun, queued_again, who_is_warned]

# %% [markdown]
# ## On your cluster
#
# Start from [train_ddp.sh](../../examples/sbatch/train_ddp.sh), the script of the program to take
# home. It has GPUs, a time, a warning, cores for the workers, a port that no other job has, and a
# log for each rank. Ranks that were warned end with a status of their own, by which the script
# knows that it must put the job back into the queue. [Several
# machines](../../docs/clusters.md#slurm) has more scripts. To try one of yours in the lab:
# `collectives lab 2 --slurm --login -- sbatch --wait job.sh`.

# %% [markdown]
# ## Pitfalls
#
# - If you call `srun python train.py` and the program expects torchrun's variables, every rank
#   believes that it is alone, or stops at `RANK expected, but not set`.
# - If one task starts several ranks, as with torchrun, ask for their cores with `--cpus-per-task`.
#   Otherwise all ranks of the machine may share one core ([Several
#   machines](../../docs/clusters.md#slurm)).
# - With `srun torchrun` the agents get TERM, too, and kill their ranks 30 seconds later, whatever
#   `--signal` says, unless you give torchrun a longer `--shutdown-timeout`.
# - Two jobs on a machine must not use the same port, so derive it from `$SLURM_JOB_ID`.
# - The output goes to a file in the folder in which you call `sbatch`, so all machines must see it.
# - A job with `--requeue` and without a checkpoint begins again from 0, and nobody notices.

# %% [markdown]
# ## Read on
#
# [sbatch](https://slurm.schedmd.com/sbatch.html) and [srun](https://slurm.schedmd.com/srun.html),
# in Slurm's documentation.
#
# Not every cluster has Slurm. Next lesson: [mpi](../../notebooks/machines/mpi.ipynb), in which
# mpiexec starts the ranks.
