# %% [markdown]
"""
# two_jobs: connect two torchrun jobs, trainer and engines

Two jobs that were started separately meet at a second store, and make a group beside their worlds.

Your trainer runs in one job. The engines that answer requests run in another job, which was there
before and will be there afterwards. `new_group` cannot join the two, because it knows the ranks of
one world only. At the end of this lesson you can send weights from one job to the other, you know
which calls work on such a group, and which one is wrong without a word.

    python lessons/machines/two_jobs.py
    collectives run machines/two_jobs
"""

# %%
from collectives import Lab, check, in_lab, run, stdout_lines
from connections import Connections

# %% [markdown]
# ## The idea
#
# A group needs three things: a store at which its ranks meet, the number of each rank, and their
# count. torchrun gives your world all three. But nothing keeps you from making another store and
# another group yourself, as [rendezvous](../../notebooks/machines/rendezvous.ipynb) made a store:
#
# - `TCPStore`: one rank of the trainer's job holds it, and all other ranks connect to its port.
# - `PrefixStore` writes a name in front of each key, so that one store serves several groups.
# - `ProcessGroupGloo` is what `init_process_group("gloo")` makes in the end. Called by its own
#   name, it leaves the world of the job alone. This is why a rank can be in both.
#
# ## In the lab
#
# Two machines, two jobs: torchrun starts the trainers on node0, and another torchrun starts the
# engines on node1. Each job numbers its ranks from 0, so for the joint group we count on: first the
# trainers, then the engines. Rank 0 sends 4 MiB of weights to all.

# %%
JOIN = r"""
import datetime
import os
import torch
import torch.distributed as dist

dist.init_process_group("gloo")  # the world of this job
own, n = dist.get_rank(), dist.get_world_size()
node = int(os.uname().nodename[-1])  # node0 trains
rank, size = node * n + own, 2 * n  # in the joint group
limit = datetime.timedelta(seconds=60)
store = dist.TCPStore("node0", 29600, is_master=rank == 0, wait_for_workers=False, timeout=limit)
group = dist.ProcessGroupGloo(dist.PrefixStore("weights", store), rank, size, limit)
"""
SEND = r"""
def bytes_sent():  # since the machine is on, by all of its processes
    (line,) = [line for line in open("/proc/net/dev") if "eth0:" in line]
    return int(line.split()[9])

weights = torch.full((2**20,), 10.0 * rank + 1)  # 4 MiB
options = dist.BroadcastOptions()
options.rootRank = 0  # of the joint group
options.timeout = limit  # of this call
group.barrier().wait()
before = bytes_sent()
group.broadcast([weights], options).wait()
group.barrier().wait()
sent = (bytes_sent() - before) / weights.nbytes

total = torch.tensor([10**own])
dist.all_reduce(total)  # in the world of this job
found = f"weights {weights.min():.0f} to {weights.max():.0f}, own sum {total.item()}"
if rank == 0:
    found += f", {sent:.0f} x 4 MiB leave node0"
print(f"rank {rank} is {own} of its job: {found}\n", end="", flush=True)
"""
# The process with the store leaves last.
LEAVE = r"""
store.add("left", 1)
while rank == 0 and store.add("left", 0) < size:
    pass
dist.destroy_process_group()
"""

# %% [markdown]
# **Predict first.** Both engines of the second run are on node1. How often do the weights leave
# node0: once for the machine, or once for each engine?


# %%
@in_lab
def two_jobs():
    found = {}
    with Lab(2) as lab:
        lab.save("send.py", JOIN + SEND + LEAVE)
        for n in (1, 2):
            torchrun = f"torchrun --standalone --nproc-per-node {n}"
            found[n] = stdout_lines(lab.run(f"{torchrun} /run/shared/send.py"))
    for n, printed in found.items():
        expected = [
            f"rank {rank} is {rank % n} of its job: weights 1 to 1, own sum {(10**n - 1) // 9}"
            for rank in range(2 * n)
        ]
        expected[0] += f", {n} x 4 MiB leave node0"
        check(printed, {"node0": expected[:n], "node1": expected[n:]}, f"{n} + {n} ranks")
    machines = {
        "node0": ["store", "rank 0", "rank 1"],
        "node1": ["rank 2", "rank 3"],
    }
    ranks = {f"rank {rank}": f"node{rank // 2}/rank {rank}" for rank in range(4)}
    links = {
        "All ranks meet at the second store.": [(rank, "node0/store") for rank in ranks.values()],
        "The joint group: rank 0 sends its weights to both engines.": [
            (ranks["rank 0"], ranks["rank 2"]),
            (ranks["rank 0"], ranks["rank 3"]),
        ],
    }
    return Connections(found[2], machines, links)


# %%
if __name__ == "__main__":
    run(two_jobs, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Once for each engine, so 2 x 4 MiB here, because the group's broadcast does not know which ranks
# share a machine. All ranks have the trainer's weights, and the sums of the jobs' own worlds are
# right: 1 + 10 = 11.
#
# </details>
#
# We counted bytes at the interface, because the counts of this course do not see such a group: they
# listen where `torch.distributed` hands a call to PyTorch's dispatcher, and the methods of
# `ProcessGroupGloo` go past it.

# %% [markdown]
# ### What works on such a group
#
# The group has methods of its own, but your code probably calls `dist.broadcast` and others with
# `group=`. Many of these functions look up the group in a table that `new_group` fills, and ours is
# not in it. So some frameworks copy a part of `init_process_group` into their code, which calls
# private functions and fills the table by hand. We try both: the group above, and such a copy.

# %%
TRY = r"""
from torch.distributed import distributed_c10d as c10d

prefix = dist.PrefixStore("copy", store)
copy, _ = c10d._new_process_group_helper(
    size, rank, [], c10d.Backend("gloo"), prefix, group_name="copy", timeout=limit
)
c10d._world.pg_group_ranks[copy] = {number: number for number in range(size)}


def broadcast(group, **root):
    dist.broadcast(x := torch.tensor([10**rank]), group=group, **root)
    return x.item() == 1


def all_reduce(group):
    dist.all_reduce(x := torch.tensor([10**rank]), group=group)
    return x.item() == 1111


def all_gather_object(group):
    dist.all_gather_object(found := [None] * size, rank, group=group)
    return found == [0, 1, 2, 3]


def recv(group):
    if rank == 0:
        dist.send(torch.tensor([5]), group_dst=size - 1, group=group)
    if rank == size - 1:
        dist.recv(x := torch.tensor([0]), group_src=0, group=group)
        return x.item() == 5
    return True


CALLS = {
    "broadcast(group_src=0)": lambda group: broadcast(group, group_src=0),
    "broadcast(src=0)": lambda group: broadcast(group, src=0),
    "all_reduce": all_reduce,
    "all_gather_object": all_gather_object,
    "barrier": lambda group: dist.barrier(group) is None,
    "recv(group_src=0)": recv,
    "get_world_size": lambda group: dist.get_world_size(group) == size,
    "get_rank": lambda group: dist.get_rank(group) == rank,
    "group.rank()": lambda group: group.rank() == rank,
}
for name, call in CALLS.items():
    for kind, one in {"ours": group, "copied": copy}.items():
        group.barrier().wait()
        try:
            outcome = "right" if call(one) else "WRONG"
        except ValueError:
            outcome = "ValueError"
        print(f"{name} {kind} {outcome}\n", end="", flush=True)
"""

# %% [markdown]
# **Predict first.** In one of the two columns, one call returns a wrong number and raises nothing.
# Which call?


# %%
@in_lab
def what_works():
    with Lab(2) as lab:
        lab.save("try.py", JOIN + TRY + LEAVE)
        printed = stdout_lines(
            lab.run("torchrun --standalone --nproc-per-node 2 /run/shared/try.py")
        )
    worst = {}
    for line in sorted(line for lines in printed.values() for line in lines):
        name, kind, outcome = line.rsplit(maxsplit=2)
        row = worst.setdefault(name, {"call": name, "ours": "right", "copied": "right"})
        if outcome != "right":
            row[kind] = outcome
    expected = {
        ("broadcast(src=0)", "ours"): "ValueError",
        ("recv(group_src=0)", "ours"): "ValueError",
        ("get_rank", "ours"): "ValueError",
        ("get_rank", "copied"): "WRONG",
    }
    not_right = {
        (name, kind): row[kind]
        for name, row in worst.items()
        for kind in ("ours", "copied")
        if row[kind] != "right"
    }
    check(not_right, expected, "calls that are not right on all ranks")
    return list(worst.values())


# %%
if __name__ == "__main__":
    run(what_works, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# `get_rank` of the copied group: it looks up this process's rank in its *own* world, so ranks 0, 1,
# 2 and 3 get 0, 1, 0 and 1. A program that asks "am I rank 0, the sender?" then has two senders.
# `group.rank()` is right in both columns.
#
# On our group, `src=` and `get_rank` at least raise an error: these two translate ranks of the
# world. `recv` raises one too, although the message has arrived, because it translates the sender's
# number for its return value. All other calls of the table work. So write `group_src`, and
# `group.rank()`.
#
# </details>

# %% [markdown]
# ### Do both jobs mean the same tensors
#
# Two jobs are started by two commands, perhaps of two versions of your code. gloo compares neither
# shapes nor dtypes: if the bytes fit, it copies them. So before a byte of the weights travels, each
# rank writes a hash of its names, shapes and dtypes into the store, and every rank compares all of
# them. In this program the engine has three wrong models, and we send the weights anyway.

# %%
COMPARE = r"""
import hashlib

trainers = {
    "a": torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]),
    "b": torch.tensor([[7.0, 8.0, 9.0], [10.0, 11.0, 12.0]]),
}
a, b = (torch.zeros(2, 3) for _ in range(2))
engines = {
    "equal": {"a": a, "b": b},
    "another order": {"b": b, "a": a},
    "another shape": {"a": torch.zeros(3, 2), "b": b},
    "another dtype": {"a": torch.zeros(2, 3, dtype=torch.int32), "b": b},
}
options = dist.BroadcastOptions()
options.rootRank = 0
for kind, engine in engines.items():
    model = trainers if rank == 0 else engine
    plan = [(name, tuple(one.shape), str(one.dtype)) for name, one in model.items()]
    mine = hashlib.sha256(repr(plan).encode()).hexdigest()
    store.set(f"{kind}/{rank}", mine)
    equal = all(store.get(f"{kind}/{other}").decode() == mine for other in range(size))
    for tensor in model.values():
        group.broadcast([tensor], options).wait()  # your program raises an error if not equal
    right = all(torch.equal(model[name], one) for name, one in trainers.items())
    if rank > 0:
        hashes = "equal" if equal else "differ"
        print(f"{kind}: hashes {hashes}, weights {'right' if right else 'wrong, no error'}")
"""

# %% [markdown]
# **Predict first.** Which of the three wrong models is noticed by gloo?


# %%
@in_lab
def the_same_tensors():
    with Lab(2) as lab:
        lab.save("compare.py", JOIN + COMPARE + LEAVE)
        torchrun = "torchrun --standalone --nproc-per-node 1"
        printed = stdout_lines(lab.run(f"{torchrun} /run/shared/compare.py"))
    wrong = "hashes differ, weights wrong, no error"
    expected = [f"another {what}: {wrong}" for what in ("dtype", "order", "shape")]
    expected += ["equal: hashes equal, weights right"]
    check(printed["node1"], expected, "four models of the engine")
    return {"node1": expected}


# %%
if __name__ == "__main__":
    run(the_same_tensors, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# None, because all three have as many bytes. The hash differs each time, on both sides, before
# anything is sent. Had the engine a shorter tensor, gloo would [end its
# process](../../notebooks/mistakes/buffers.ipynb), which is no better.
#
# </details>

# %%
STEPS = [two_jobs, what_works, the_same_tensors]

# %% [markdown]
# ## On your cluster
#
# Begin with the two programs in
# [examples/weight_update_two_jobs](../../examples/weight_update_two_jobs/trainer.py), which need
# torch alone. You can start them in any order, on one machine or two, or with Slurm. They say which
# job has not come, that the port is taken, and which tensor differs. The store's port must be open
# on the trainer's machine. SGLang and vLLM join such a group when HTTP asks them to:
# [Engines](../../docs/engines.md) has the order of the requests, and what goes wrong there.

# %% [markdown]
# ## Pitfalls
#
# - The store ends with the process that holds it, so this process must leave last.
# - `init_process_group` a second time raises "trying to initialize the default process group
#   twice!", and `new_group` with more ranks than the world has raises a `ValueError`, too.
# - Under torchrun do not use `init_method="tcp://..."` for the second store. torch 2.13 then opens
#   none ([rendezvous](../../notebooks/machines/rendezvous.ipynb) says why).
# - A second group with the same `PrefixStore` finds the addresses of the first, so each needs a new
#   name.
# - Where another program listens on the store's port and answers nothing, `TCPStore` waits longer
#   than its timeout. The example has a timer for that.
# - Compare versions of torch as numbers: `"2.13" >= "2.6"` is false for texts, and a framework once
#   passed a wrong argument because of that.

# %% [markdown]
# ## On GPUs
#
# - Over NCCL, each rank of the joint group needs a GPU of its own: ["Using the same CUDA device
#   multiple times as different ranks of the same NCCL communicator is not
#   supported"](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/communicators.html).
#   But two jobs on one machine both begin to count at GPU 0. So the example uses NCCL within each
#   job, and between the jobs it sends the weights with gloo, through the memory of the CPU.
# - Object collectives such as `all_gather_object` need the GPU of the rank to be the current device
#   (`torch/distributed/distributed_c10d.py`: "internal tensor representations of objects must be
#   moved to the GPU device before communication takes place").

# %% [markdown]
# ## Write it yourself
#
# In your folder of [exercises](../../README.md#exercises):
#
# ```sh
# collectives practice compare_the_plans
# ```

# %% [markdown]
# ## Read on
#
# - [weight_update](../../notebooks/weight_update.ipynb): the same update in one job, in buckets.
# - [`TCPStore`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.TCPStore)
#   and
#   [`PrefixStore`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.PrefixStore),
#   in PyTorch's documentation.
#
# The weights arrive, but here no engine was at work meanwhile. Next lesson:
# [versions](../../notebooks/machines/versions.ipynb), engines that answer while weights arrive, and
# one that dies.
