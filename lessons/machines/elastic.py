# %% [markdown]
"""
# elastic: elastic training, machines that leave and join

A rank, an agent or a machine goes, or a machine comes, and torchrun starts the training again with
the machines that are there.

Your training has two machines, and one of them loses its power at night. You would rather train on
with the other one than find a dead job in the morning, and use the second machine again when it is
back. At the end of this lesson you can start such a training, and say of each accident with how
many ranks it goes on, and which accident it does not notice.

    python lessons/machines/elastic.py
    collectives run machines/elastic
"""

# %%
from collectives import Lab, check, in_lab, run
from elastic_job import AGENT, WORKER, Job, sh

# %% [markdown]
# ## The idea
#
# A collective needs all ranks of its group. So if torchrun loses one of them, it stops all ranks,
# the agents meet again at the store, and they start a new world with new ranks. This world may have
# another size: `--nnodes 1:2` means that one machine is enough and that two are the most. (There
# are other ways: torch has `shrink_group` for NCCL, and
# [torchft](https://github.com/meta-pytorch/torchft) goes on with the replicas that are left.)
#
# Three parts must outlive the accident:
#
# 1. **The store**, at which the agents meet. Here it is on a machine of its own.
# 2. **The checkpoint**, on a disk that all machines see.
# 3. **The training's result** must not depend on the world size: each rank takes its share of each
#    batch. [elastic_train.py](../../lessons/machines/elastic_train.py) also rounds the gradients so
#    that sums are exact in any order: the parameters are equal to the last bit with 1 rank or 2.
#    This proves neither the shares nor the rounding: we got the same bits when each rank computed
#    whole batches, and without rounding. [seeds](../../notebooks/training/seeds.ipynb) counts what
#    a rank computes, and [different_bits](../../notebooks/training/different_bits.ipynb) rounds.
#
# An accident is noticed late, because a machine that is gone sends no message about it. Each agent
# sends a sign of life to the store, and all other agents count how many are missing. Ranks notice
# the loss in their next collective, some only at its time limit.

# %% [markdown]
# ## In the lab
#
# The store is on the host `login`, and this is the command on each machine that trains. The numbers
# at the end make this lesson quick: the agents give one up after 3 seconds without a sign of life.
#
# The variable in front keeps a restart from finding the addresses of the old ranks. The prefix of
# [failover](../../notebooks/training/failover.ipynb) does not help here, because each agent counts
# its own restarts, so two machines may have different prefixes.

# %%
TORCHRUN = """
env TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --nnodes 1:2 --nproc-per-node 1 --max-restarts 3
    --rdzv-backend c10d --rdzv-endpoint $STORE:29400 --rdzv-id $JOB --rdzv-conf
    join_timeout=60,last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3
"""

# %% [markdown]
# A `Job`, from [elastic_job.py](../../lessons/machines/elastic_job.py), starts the agents.
# `survive` lets an accident happen when the ranks have made at least 15 steps, waits for the next
# step, and prints on stderr how long that took. `finish` compares the parameters.

# %% [markdown]
# ### Processes die
#
# We begin with accidents that leave the machine itself alive. First the worker of node1 gets
# SIGKILL. Later its agent gets SIGTERM, as a cluster sends it, which gives the agent time to write
# into the store that it leaves.

# %% [markdown]
# **Predict first.** The worker of node1 is killed. Who notices it first, and does node1 take part
# in the training again?


# %%
@in_lab
def elastic():
    with Lab(2) as lab:
        job = Job(lab, "die", TORCHRUN)
        job.survive("killed_worker", 2, lambda: sh(lab, 1, f"kill -9 {WORKER}"))
        job.survive("terminated_agent", 2, lambda: sh(lab, 1, f"kill {AGENT}"))
        rows = job.finish()
    check([row["after"] for row in rows], [2, 1], "ranks after the accidents")
    return rows


# %%
if __name__ == "__main__":
    run(elastic, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# The agent of node1 notices it, because the worker is its child. It lives, so both agents meet
# again, and the training goes on with 2 ranks. But if the agent is terminated, its machine leaves,
# and the training goes on with 1 rank. Each time it continues from the last checkpoint.
#
# </details>

# %% [markdown]
# ### Machines go and come
#
# An agent that is terminated can still say so, but a machine without power cannot. In the second
# training node1 loses its power. Then it comes back, with an empty disk, so we start an agent on
# it. At last we pull its cable.

# %% [markdown]
# **Predict first.** Nothing has failed when the new machine comes. Does it disturb the training?


# %%
@in_lab
def machines_go_and_come():
    with Lab(2) as lab:
        job = Job(lab, "change", TORCHRUN)

        def come():
            lab.power_on(1)
            job.agents.append(job.start_agent(1))

        job.survive("machine_without_power", 2, lambda: lab.power_off(1))
        job.survive("new_machine", 1, come)
        job.survive("pulled_cable", 2, lambda: lab.unplug(1))
        rows = job.finish()
    check([row["after"] for row in rows], [1, 2, 1], "ranks after the accidents")
    return rows


# %%
if __name__ == "__main__":
    run(machines_go_and_come, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Yes: the agents see the new one at the store, and restart with 2 ranks, which costs all steps
# since the last checkpoint.
#
# A lost power supply and a pulled cable look the same to node0: silence. So its rank waits in
# `all_reduce` for the time limit of its group.
#
# </details>

# %% [markdown]
# ### An agent that can tell nobody
#
# SIGKILL leaves an agent no time to say anything, while its machine stays and its worker, too. In
# the second job the agent that is killed also holds the store, as `--rdzv-endpoint node0:29400`
# demands. Afterwards we type the command again on node1, with the store on `login`.

# %% [markdown]
# **Predict first.** The agent of node1 is killed, its worker is not. Does the worker train on?


# %%
@in_lab
def agents_that_say_nothing():
    with Lab(2) as lab:
        job = Job(lab, "killed_agent", TORCHRUN)
        job.wait_until_at_work(2)
        sh(lab, 1, f"kill -9 {AGENT}")
        rows = job.finish(unnoticed="killed_agent")

        job = Job(lab, "killed_store", TORCHRUN, store="node0")

        def happens():
            sh(lab, 0, f"kill -9 {AGENT}")
            check(job.agents[1].wait(60), 1, "the exit status of torchrun on node1")
            said = sh(lab, 1, f"grep RendezvousConnectionError {job.folder}/node1.err")
            check(said != "", True, "RendezvousConnectionError")
            job.agents.append(job.start_agent(1))

        job.survive("killed_store", 2, happens)
        rows += job.finish()
    check([row["after"] for row in rows], [2, 1], "ranks after the accidents")
    return rows


# %%
if __name__ == "__main__":
    run(agents_that_say_nothing, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Yes: the training ends with 2 ranks, and nobody notices the accident. But now no agent would start
# this worker again.
#
# In the second job torchrun on node1 ends with `RendezvousConnectionError`. Agents may come and go,
# but the store must stay. The command that we typed again continues from the checkpoint, here with
# node1 alone. If the machine of the store loses its power, nothing ends at all: in our try torchrun
# on node1 still waited after a minute.
#
# </details>

# %%
STEPS = [elastic, machines_go_and_come, agents_that_say_nothing]

# %% [markdown]
# ## On your cluster
#
# Let the store run on a machine that does not train:
# [Several machines](../../docs/clusters.md#torchrun-with-the-rendezvous-on-a-third-machine) has the
# program. Leave out `--rdzv-conf`, or choose longer times: by default an agent sends a sign of life
# every 5 seconds, and agents wait 30 s for more machines than they need.
# [What goes wrong between machines](../../docs/machines.md#how-soon-training-continues) has the
# times of these accidents as we measured them, and the command that measures them on your machine.
#
# ![When how many ranks trained, before and after each accident](../../docs/elastic_times.svg)

# %% [markdown]
# ## Pitfalls
#
# - Without `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1` a restart fails or hangs, or works by luck
#   ([pytorch#135712](https://github.com/pytorch/pytorch/issues/135712)).
# - By default the time limit of a group is 30 minutes with gloo, and 10 with NCCL, and ranks wait
#   as long for a silent machine.
# - `--max-restarts` is 0 by default, so set it. Each agent counts its own failures, and a new
#   machine does not count as one.
# - `--nnodes 2` is not elastic: after the loss of one machine, the other one waits.
# - With `keep_alive_max_attempt=2` a busy machine was once given up, and two worlds wrote the same
#   checkpoint.
# - A program that sets its rank and world size by itself is not elastic. Read them after
#   `init_process_group`.

# %% [markdown]
# ## Read on
#
# - [failover](../../notebooks/training/failover.ipynb) kills ranks on one machine.
#
# Here all ranks belong to one job. Next lesson:
# [two_jobs](../../notebooks/machines/two_jobs.ipynb), in which ranks of two jobs exchange weights.
