# %% [markdown]
"""
# versions: update weights without mixing two versions

Engines that answer while new weights arrive must not mix two versions, nor may a death leave them
with different ones.

Your engines answer requests all the time, and a new version of the weights comes every minute. If
they stop for each update, they are idle; if they do not stop, an answer may begin with the old
weights and end with the new ones. No error tells you that. At the end of this lesson you can
receive weights during an answer without touching it, and you can bring all engines that are left to
one version when one of them dies in the middle of an update.

    python lessons/machines/versions.py
    collectives run machines/versions
"""

# %%
from collectives import Lab, check, in_lab, run, stdout_lines
from elastic_job import open_store
from weights_in_use import WeightsInUse

# %% [markdown]
# ## The idea
#
# `broadcast` can run behind your program's back: the call returns a `Work` at once, and a thread of
# gloo writes the tensor when the trainer sends. So an engine can post its receives and go on
# answering. What decides is *where* it receives:
#
# - **in place**, into the weights that the answers are computed with;
# - **into spares**, a second copy that nobody reads. When all tensors are there, the engine swaps
#   the two copies, between two answers.
#
# ## In the lab
#
# The model has 8 layers, and in version v each layer multiplies its input by v. Therefore an answer
# of version 1 is 1, one of version 2 is 2 ** 8 = 256, and any other number is torn: 2 ** k means
# that k layers were new. The trainer on node0 has no luck to wait for. It sends when every engine
# is in the middle of an answer, and this answer goes on when the weights have come.

# %%
ANSWER = r"""
import datetime
import sys
import time
import torch
import torch.distributed as dist

rank, size = int(sys.argv[1]), int(sys.argv[2])
limit = datetime.timedelta(seconds=60)
store = dist.TCPStore("node0", 29600 + size, is_master=rank == 0, wait_for_workers=False)
group = dist.ProcessGroupGloo(dist.PrefixStore("weights", store), rank, size, limit)
options = dist.BroadcastOptions()
options.rootRank = 0


def weights(version):
    return [torch.tensor([float(version)]) for _ in range(8)]


def send(way):
    store.wait([f"{way}: {engine} is in an answer" for engine in range(1, size)])
    for number, layer in enumerate(weights(2)):
        if number == 4:
            time.sleep(0.2)  # half has come: who swaps now is torn
        group.broadcast([layer], options).wait()


def receive(tensors):
    return [group.broadcast([tensor], options) for tensor in tensors]  # returns at once


def answer(layers, in_the_middle):
    x, used = torch.tensor([1.0]), ""
    for number in range(8):
        if number == 4:
            in_the_middle()
        x = layers[number] * x
        used += f"{layers[number].item():.0f}"
    return f"{used}={x.item():.0f}"


def work(way):
    layers, spares = weights(1), weights(0)
    works = []
    if way != "stop":
        works = receive(layers if way == "in place" else spares)

    def in_the_middle():
        store.set(f"{way}: {rank} is in an answer", "")
        while not all(one.is_completed() for one in works):
            time.sleep(0.01)  # stands for the rest of a long answer
        if way == "layer by layer":
            layers[:] = spares

    first = answer(layers, in_the_middle)
    if way == "stop":
        works = receive(spares)  # and no answers meanwhile
    for one in works:
        one.wait()  # raises the error, if there is one
    if way != "in place":
        layers, spares = spares, layers
    print(f"{way}, engine {rank}: {first}, next {answer(layers, lambda: None)}")


for way in ("stop", "in place", "layer by layer", "spares"):
    send(way) if rank == 0 else work(way)
    group.barrier().wait()
"""

# %% [markdown]
# **Predict first.** With `layer by layer` an engine receives into spares, and takes each layer as
# soon as it has come. Is an answer torn then?


# %%
@in_lab
def versions():
    with Lab(4) as lab:
        lab.save("answer.py", ANSWER)
        few = stdout_lines(lab.run("python /run/shared/answer.py {node} 2", on=[0, 1]))
        found = stdout_lines(lab.run("python /run/shared/answer.py {node} 4"))
    torn = {"stop": "11111111=1", "spares": "11111111=1"}
    torn |= dict.fromkeys(("in place", "layer by layer"), "11112222=16")
    for printed in (few, found):
        for engine in range(1, len(printed)):
            expected = [
                f"{way}, engine {engine}: {one}, next 22222222=256" for way, one in torn.items()
            ]
            check(printed[f"node{engine}"], sorted(expected), f"{len(printed)} ranks")
    cells = {way: [int(one) for one in text.partition("=")[0]] for way, text in torn.items()}
    rows = [
        {"way": way, "answer": text.partition("=")[2], "next": 256} for way, text in torn.items()
    ]
    end = {row["way"]: f"answers {row['answer']}" for row in rows}
    legend = "The layers of an answer during which the weights arrive, on each engine."
    return WeightsInUse(rows, cells, end, legend)


# %%
if __name__ == "__main__":
    run(versions, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Yes: 16 = 2 ** 4, so four layers were old and four new, just as in place. Each layer for itself is
# whole, but an answer reads all of them.
#
# </details>
#
# `stop` and `spares` are both right, and they differ in what they cost. An engine that stops is
# idle for as long as the weights travel, and one with spares needs the memory of a second copy.
#
# The surprising way is `in place`. Its engine has not called `wait` when the answer goes wrong: a
# receive that is posted writes as soon as the trainer sends. So even an engine that stops before it
# calls `wait` is torn if it has posted its receives earlier.

# %% [markdown]
# ### An engine dies
#
# Spares protect an answer. They also protect the version, because until the swap an engine can
# still keep the old weights. In this update of 8 buckets, the engine on node1 has got three when it
# is lost. First its process is killed; in the second run its machine loses its power. Each call has
# a limit of 3 seconds, which is `options.timeout`. The trainer's is one second longer, because who
# reaches the limit closes its connections, and then the others notice that at once.
#
# Engines that are left must agree on what happens next, and the broken group cannot carry that
# message. So this is in a store on `login`, which outlives all ranks:
#
# 1. Who gets an error writes `alive` and its number.
# 2. The trainer waits for a grace period, and then writes the members of a new group.
# 3. The members make a new group, under a new name, and the trainer sends all buckets again.
# 4. Each member writes that all has come. Only then does the trainer write `commit`, and only then
#    do the engines swap.

# %%
UPDATE = r"""
import datetime
import os
import signal
import sys
import time
import torch
import torch.distributed as dist

rank, accident = int(sys.argv[1]), sys.argv[2]
LIMIT = 3  # seconds, of a call
store = dist.PrefixStore(accident, dist.TCPStore("login", 29400, is_master=False))
options = dist.BroadcastOptions()
options.rootRank = 0
options.timeout = datetime.timedelta(seconds=LIMIT + (rank == 0))


def group_of(name, members):
    limit = datetime.timedelta(seconds=60)  # longer than that of a call: to meet takes longer
    prefix = dist.PrefixStore(name, store)
    return dist.ProcessGroupGloo(prefix, members.index(rank), len(members), limit)


def update(group):
    for number, bucket in enumerate(new if rank == 0 else spares):
        if rank == 1 and number == 3:
            store.wait(["4 on rank 2", "3 on rank 3"])
            if accident == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            print("now", flush=True)
            signal.pause()  # until its machine has no power
        group.broadcast([bucket], options).wait()
        store.set(f"{number + 1} on rank {rank}", "")


weights, new, spares = (
    [torch.full((2**18,), value) for _ in range(8)] for value in (1.0, 2.0, 0.0)
)
group = group_of("update 1", [0, 1, 2, 3])
try:
    update(group)
except RuntimeError as error:
    when = "at the limit" if "Timed out" in str(error) else "at once"
    has = sum((bucket == 2).all().item() for bucket in spares)
    print(f"rank {rank}: notices {when}, buckets {has}", flush=True)

store.set(f"alive/{rank}", "")
if rank == 0:
    time.sleep(2 * LIMIT)  # the grace: all who will notice have noticed
    members = [one for one in range(4) if store.check([f"alive/{one}"])]
    store.set("members", " ".join(map(str, members)))
members = [int(one) for one in store.get("members").split()]
update(group_of("update 1, attempt 2", members))
if rank == 3:
    time.sleep(0.5)  # the slowest engine: does the commit wait for it?
store.set(f"came/{rank}", "")
if rank == 0:
    store.wait([f"came/{one}" for one in members])
    store.set("commit", "")
store.wait(["commit"])
came = [one for one in members if store.check([f"came/{one}"])]
weights = new if rank == 0 else spares
version = {bucket.unique().item() for bucket in weights}
print(f"rank {rank}: members {members}, came {came}, version {version}", flush=True)
"""

# %% [markdown]
# gloo's broadcast is a [tree](../../notebooks/algorithms/tree.ipynb): rank 0 sends to ranks 1 and
# 2, and rank 1 passes on to rank 3.
#
# **Predict first.** Which ranks notice at once that the process of rank 1 was killed? And which do
# when its machine loses its power?


# %%
@in_lab
def an_engine_dies():
    found = {}
    with Lab(4) as lab:
        open_store(lab)
        lab.save("update.py", UPDATE)

        def hear(machine, stream, line):
            if line.strip() == "now":
                lab.power_off(1)

        for accident in ("killed", "without power"):
            command = ["python", "/run/shared/update.py", "{node}", accident]
            node0, _, *others = lab.run(command, on_line=hear)
            found[accident] = [line for one in (node0, *others) for line in one.stdout.splitlines()]
    rows = []
    for accident, first in (("killed", "at once"), ("without power", "at the limit")):
        noticed = {0: first, 2: "at the limit", 3: first}
        buckets = {0: 0, 2: 4, 3: 3}
        expected, all_came = [], "members [0, 2, 3], came [0, 2, 3]"
        for rank, when in noticed.items():
            expected.append(f"rank {rank}: notices {when}, buckets {buckets[rank]}")
            expected.append(f"rank {rank}: {all_came}, version {{2.0}}")
        check(found[accident], expected, accident)
        rows += [
            {"rank 1": accident, "rank": rank, "notices": noticed[rank], "buckets": has or "sends"}
            for rank, has in buckets.items()
        ]
    cells = {"rank 2, after the error": [2] * 4 + [1] * 4}
    cells |= {"rank 3, after the error": [2] * 3 + [1] * 5}
    cells |= {f"rank {rank}, after the commit": [2] * 8 for rank in (2, 3)}
    end = dict.fromkeys(cells, "")
    legend = "The 8 buckets, if the engines received in place. Rank 1 has died."
    return WeightsInUse(rows, cells, end, legend)


# %%
if __name__ == "__main__":
    run(an_engine_dies, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Of a killed process the system closes the connections, so its neighbours in the tree notice at
# once: ranks 0 and 3. Rank 2 waits for rank 0 until its limit. When a machine has no power, nobody
# closes anything, and all three wait until the limit.
#
# </details>
#
# Look at the buckets: at the error rank 2 has got four and rank 3 three. Had they received in
# place, the two engines would now answer with different models, and no call would ever say so. But
# both still have their spares, so the second attempt overwrites these, and all swap after the
# commit.
#
# The grace period must be longer than the limit of a call. If the trainer named the members as soon
# as it noticed, rank 2 would be left out, although it is alive and only waits.

# %%
STEPS = [versions, an_engine_dies]

# %% [markdown]
# ## On your cluster
#
# Choose the limit of a call so that a slow update ends within it, because until the limit nobody
# notices a machine that is gone. The store that outlives the ranks belongs on a machine that
# neither trains nor answers, as in [elastic](../../notebooks/machines/elastic.ipynb). If your
# engines are in a job of their own, see
# [two_jobs](../../notebooks/machines/two_jobs.ipynb). SGLang and vLLM are paused for an update, and
# their version is a label that nobody checks: see [Engines](../../docs/engines.md).

# %% [markdown]
# ## Pitfalls
#
# - A broadcast that has returned on the trainer is no receipt. Commit when the engines have written
#   that all has come.
# - Raise the version number after the swap, not when the update is announced.
# - Swap between two answers. If two updates come during one answer, the second one is received into
#   the copy that this answer still reads, so do not post it before the answer has ended.
# - Call `wait` also after `is_completed()`: it raises the error, if there was one.
# - A key-value cache of the old weights is torn, too. Empty it at the swap, or let the answers that
#   use it end first.
# - The group of the second attempt needs a new prefix. Below the old one it would find the
#   addresses of the dead rank.

# %% [markdown]
# ## On GPUs
#
# - With NCCL, do not take `is_completed()` or `wait()` for news that the weights are there. They
#   say that the receive stands in a CUDA stream, and order the streams: `wait` ["will block the
#   currently active CUDA stream until the operation is completed (but will not block the
#   CPU)"](https://docs.pytorch.org/docs/stable/distributed.html#synchronous-and-asynchronous-collective-operations).
#   Before an engine writes into the store that all has come, it calls `torch.cuda.synchronize()`.
# - An engine does not survive a dead trainer as it does here. After the time limit its process ends
#   (`torch/distributed/distributed_c10d.py`: "collectives will be aborted asynchronously and the
#   process will crash"), so whatever is to live on must be another process.

# %% [markdown]
# ## Write it yourself
#
# In your folder of [exercises](../../README.md#exercises):
#
# ```sh
# collectives practice commit_what_all_have
# ```

# %% [markdown]
# ## Read on
#
# [failover](../../notebooks/training/failover.ipynb): training itself survives a death otherwise,
# because all ranks start again.
#
# So far you started every process and every agent by hand. Next lesson:
# [slurm](../../notebooks/machines/slurm.ipynb), in which a scheduler starts them.
