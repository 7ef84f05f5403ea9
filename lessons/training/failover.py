# %% [markdown]
"""
# failover

A process is killed in the middle of the training. torchrun starts all ranks again, and they
continue from the newest checkpoint.

You will see a training that is killed in a step, in an `all_reduce` and while it saves, and that
ends with the bits of an undisturbed one; why torch 2.13 needs a cure for that; and how all ranks
stop together after a SIGTERM.

    python lessons/training/failover.py
    torchrun --nproc-per-node 4 lessons/training/failover.py
"""

# %%
import itertools
import signal
from contextlib import suppress
from tempfile import TemporaryDirectory
from unittest import mock
from collectives import check_training
from collectives.lesson import Curve, digits, files, run
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

# %% [markdown]
# ## The idea
#
# The larger a job, the more often one of its machines fails. One rank alone cannot be replaced: the
# others wait for it in a collective, and their connections to it are broken. So the launcher ends
# all ranks and starts all of them again, and each finds the newest checkpoint.
#
# Three things are left to the program:
#
# 1. Wherever it is killed, the newest checkpoint is complete.
# 2. It loads before it trains. So the command that continues is the command that started it.
# 3. A step that is made again gives the same bits. Then nothing is lost but time.
#
# Some failures are announced. If a cluster needs its machines for something else, it sends the
# signal SIGTERM to the processes, waits for a grace period, and only then kills them with SIGKILL.
# That is enough time to save.

# %% [markdown]
# ## The code
#
# This is the program of [checkpoint](../../notebooks/training/checkpoint.ipynb), without dropout.
# Its `save` and `load` stay as they are: `checkpoint()` loads that lesson from its file.


# %%
def network(seed, device):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).double().to(device)


def shuffled():
    return torch.randperm(1797, generator=torch.Generator().manual_seed(0))


def checkpoint():
    return files.load(files.find("training/checkpoint"))


def shard_loss(model, images, labels, rank=0, n=1):
    loss = cross_entropy(model(images[rank::n]), labels[rank::n])
    (loss / n).backward()
    return loss.item()


def on_my_shard(model, images, labels):
    rank, n = dist.get_rank(), dist.get_world_size()
    if len(images) < n:
        raise ValueError(f"{len(images)} images for {n} ranks: use fewer ranks or larger batches.")
    loss = shard_loss(model, images, labels, rank, n)
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    return loss


# %% [markdown]
# ### SIGTERM
#
# The signal may reach the ranks at different moments, or only one of them. A rank that stopped at
# once would leave the others waiting. So the handler only notes the signal. After each step the
# ranks agree: if it has reached any of them, all of them save and stop.


# %%
signals = []  # of this rank


def asked_to_stop(device):
    count = torch.tensor([len(signals)], device=device)
    dist.all_reduce(count, op=dist.ReduceOp.MAX)
    return count.item() > 0


def train(model, backward, batches, device, folder=None):
    torch.set_num_threads(1)  # the ranks of one machine share its cores
    images, labels = digits(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    done = checkpoint().load(folder, model, optimizer) if folder else 0
    losses = []
    for step, batch in enumerate(batches[done:], done + 1):
        optimizer.zero_grad()
        losses.append(backward(model, images[batch], labels[batch]))
        optimizer.step()
        stop = folder and asked_to_stop(device)
        if folder and (stop or step % 5 == 0):
            checkpoint().save(folder, step, model, optimizer)
        if stop:
            break
    return (model, optimizer), Curve(losses, done=done)


# %% [markdown]
# ### An accident at a chosen place
#
# `at_call` does something just before a function is called for the n-th time. Here, the last rank
# gets a SIGTERM in its 8th step. On the other ranks n is 0: nothing happens.


# %%
def at_call(owner, name, number, action):
    function, calls = getattr(owner, name), itertools.count(1)

    def counted(*args, **kwargs):
        if next(calls) == number:
            action()
        return function(*args, **kwargs)

    return mock.patch.object(owner, name, counted)


def failover(rank, world_size, device):
    batches = shuffled().split(64 // world_size * world_size)[:-1]
    number = 8 if rank == world_size - 1 else 0
    handler = signal.signal(signal.SIGTERM, lambda number, frame: signals.append(number))
    with TemporaryDirectory() as folder:
        with at_call(torch.optim.SGD, "step", number, lambda: signal.raise_signal(signal.SIGTERM)):
            _, first = train(network(0, device), on_my_shard, batches, device, folder)
        signals.clear()
        continued, second = train(network(1, device), on_my_shard, batches, device, folder)
    signal.signal(signal.SIGTERM, handler)  # the old one

    undisturbed, _ = train(network(0, device), on_my_shard, batches, device)
    expected, _ = train(network(0, device), shard_loss, batches, device)
    check_training(continued, undisturbed, "after SIGTERM", limit=0.0)  # bit for bit
    check_training(continued, expected, "one process")
    return {"loss": second, "steps before": len(first.values), "after": len(second.values)}


# %% [markdown]
# **Predict first.** A checkpoint is saved after every fifth step, and after a SIGTERM. The epoch
# has 28 steps. How many steps does the second training make? Write the number down.

# %%
if __name__ == "__main__":
    run(failover)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 20: all ranks save and stop together after step 8, and no step is made twice. The picture shows
# the losses of the steps 9 to 28.
#
# </details>

# %% [markdown]
# ### Without a warning
#
# A SIGKILL leaves no time to save. First comes a rehearsal, which kills nobody: all ranks raise an
# exception at the same place, and then train again. They do it twice: before the optimizer makes
# its 8th step, and before the 63rd `all_reduce`. Each step calls `all_reduce` 5 times: for the 4
# parameters, and to ask for signals.


# %%
def rehearsal(rank, world_size, device):
    batches = shuffled().split(64 // world_size * world_size)[:-1]
    undisturbed, _ = train(network(0, device), on_my_shard, batches, device)
    steps, crash = {}, mock.Mock(side_effect=InterruptedError)
    for owner, name, number in ((torch.optim.SGD, "step", 8), (dist, "all_reduce", 63)):
        with TemporaryDirectory() as folder:
            with at_call(owner, name, number, crash), suppress(InterruptedError):
                train(network(0, device), on_my_shard, batches, device, folder)
            continued, losses = train(network(1, device), on_my_shard, batches, device, folder)
        check_training(continued, undisturbed, f"crash in {name}", limit=0.0)
        steps[f"after a crash in {name}"] = len(losses.values)
    return steps


# %% [markdown]
# **Predict first.** In which step is the 63rd `all_reduce`, and how many of the 28 steps does the
# training make after that crash? Write the numbers down.

# %%
if __name__ == "__main__":
    run(rehearsal)

# %% [markdown]
# <details><summary>Answer</summary>
#
# In step 13, after 12 steps with 5 calls each. The newest checkpoint is that of step 10, so the
# training makes 18 steps; it makes the steps 11 and 12 again. After the crash in step 8 it makes
# 23.
#
# </details>

# %% [markdown]
# ### With SIGKILL, under torchrun
#
# Now the kills are real. The program uses the functions above. First, rank 1 kills itself in a
# step. After the restart, it kills itself in an `all_reduce`, while rank 0 is in it, too. After the
# next restart, rank 0 kills itself while it saves. Save this as `train.py`:
#
# ```python
# import functools
# import os
# import signal
# import sys
# import time
# from collectives import check_training
# from collectives.lesson import files
# import torch
# import torch.distributed as dist
# import torch.distributed.nn  # subtle: imported within the group, it would keep it alive
#
# lesson = files.load(files.find("training/failover"))  # the functions above
#
#
# def kill():
#     os.kill(os.getpid(), signal.SIGKILL)
#
#
# def end_job():
#     os.kill(os.getppid(), signal.SIGTERM)  # torchrun tells all ranks
#     while not lesson.signals:
#         time.sleep(0.01)
#
#
# ACCIDENTS = {  # which rank, before which call of which function
#     "kills": [
#         (1, torch.optim.SGD, "step", 8, kill),
#         (1, dist, "all_reduce", 33, kill),
#         (0, os, "fsync", 2, kill),
#     ],
#     "sigterm": [(1, torch.optim.SGD, "step", 8, end_job)],
# }
#
#
# def main(folder, accidents=None):
#     signal.signal(signal.SIGTERM, lambda number, frame: lesson.signals.append(number))
#     dist.init_process_group("gloo")
#     rank, restart = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
#     if rank == 0:
#         print(f"restart {restart} finds:", *sorted(os.listdir(folder)))
#     for victim, *accident in ACCIDENTS.get(accidents, [])[restart : restart + 1]:
#         if rank == victim:
#             lesson.at_call(*accident).start()
#     batches = lesson.shuffled().split(64)[:-1]
#     ours = {"backward": lesson.on_my_shard, "batches": batches, "device": "cpu"}
#     train = functools.partial(lesson.train, **ours)
#     try:
#         trained, losses = train(lesson.network(0, "cpu"), folder=folder)
#     except OSError as error:
#         sys.exit(f"nothing saved: {error.strerror}. Make room, and type the same command again.")
#     if lesson.signals:
#         sys.exit("stopped by SIGTERM: type the same command again to continue.")
#     undisturbed, _ = train(lesson.network(0, "cpu"))
#     check_training(trained, undisturbed, "failover", limit=0.0)
#     if rank == 0:
#         print(f"{len(losses.values)} more steps, and the bits of an undisturbed training")
#     dist.barrier()
#     dist.destroy_process_group()
#
#
# if __name__ == "__main__":
#     main(*sys.argv[1:])
# ```
#
# Start it with two ranks and an empty folder. By default, torchrun restarts nothing. Here it may
# restart three times:
#
# ```console
# $ mkdir kept
# $ export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
# $ torchrun --nproc-per-node 2 --max-restarts 3 train.py kept kills
# restart 0 finds:
# restart 1 finds: step-0005.pt
# restart 2 finds: step-0005.pt step-0010.pt
# restart 3 finds: draft step-0005.pt step-0010.pt step-0015.pt
# 13 more steps, and the bits of an undisturbed training
# ```
#
# On stderr, torchrun reports each `failed (exitcode: -9)`; 9 is the number of SIGKILL. The `draft`
# is what rank 0 was writing. `load` does not look for this name, and the next `save` overwrites it.
# If there are more kills than restarts, torchrun gives up, and the checkpoints stay. Then type the
# command again.
#
# ### The variable
#
# Without it, torch 2.13 nearly always fails at the first restart, or seems to hang there:
#
# ```text
# RuntimeError: Gloo connectFullMesh failed with [...] Connection refused
# ```
#
# The ranks write their addresses into a store of torchrun, which keeps it when it restarts them. So
# the new ranks read the addresses of the killed ones
# ([pytorch#135712](https://github.com/pytorch/pytorch/issues/135712)). With
# `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`, the ranks make a new store each time. Another cure is in
# the program: it puts the number of the restart in front of all keys. These lines replace the line
# with `init_process_group`:
#
# ```python
#     address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
#     store = dist.TCPStore(address, port, is_master=False)
#     store = dist.PrefixStore(os.environ["TORCHELASTIC_RESTART_COUNT"], store)
#     rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
#     dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
# ```
#
# ### A grace period
#
# In this run torchrun gets a SIGTERM in step 8, and passes it on to all ranks. It waits up to 30
# seconds for them (documented). All ranks save and stop, and torchrun ends with exit status 1. The
# second command is the same without the accident, and it continues. Begin with an empty folder:
#
# ```console
# $ torchrun --nproc-per-node 2 train.py kept sigterm
# restart 0 finds:
# $ torchrun --nproc-per-node 2 train.py kept
# restart 0 finds: step-0005.pt step-0008.pt
# 20 more steps, and the bits of an undisturbed training
# ```
#
# The first command says on stderr, once for each rank:
#
# ```text
# stopped by SIGTERM: type the same command again to continue.
# ```
#
# If the disk is full, the draft is incomplete, and the older checkpoints stay. Then `train.py`
# says:
#
# ```text
# nothing saved: No space left on device. Make room, and type the same command again.
# ```

# %%
STEPS = [failover, rehearsal]

# %% [markdown]
# ## The proof
#
# `check_training` with `limit=0.0` demands the same bits after each interruption as without it. The
# tests save `train.py`, and run all commands of this lesson, with both cures. Another test asks
# whether a restarted rank still finds the store of the killed ones: as soon as a torch no longer
# needs the cure, it fails and says so.

# %% [markdown]
# ## Make it wrong
#
# Each of these is one change. Make it, run the steps, read what the proof says, and undo it.
#
# 1. **The optimizer is forgotten.** In `train`, change `load(folder, model, optimizer)` to
#    `load(folder, model, torch.optim.SGD(model.parameters(), momentum=0.9))`. It says `rank 0/4:
#    0.bias.momentum_buffer: relative error 0.4`.
# 2. **The number of the next step is saved.** In `train`, change `save(folder, step, model,
#    optimizer)` to `save(folder, step + 1, model, optimizer)`. It says `rank 0/4:
#    2.bias.momentum_buffer: relative error 0.2`.
# 3. **The epoch begins again.** In `train`, change `batches[done:], done + 1` to `batches, done +
#    1`. It says `rank 0/4: 0.bias.momentum_buffer: relative error 0.6`.
#
# To make more steps again is not wrong. Change `step % 5` to `step % 9`: the bits are the same.

# %% [markdown]
# ## Pitfalls
#
# - A rank that dies takes the others with it: their next collective raises `Connection closed by
#   peer` or `Connection reset by peer`. Do not catch this error. Let the rank end, so that torchrun
#   restarts it.
# - When one rank has failed, torchrun sends SIGTERM to the others. Their handler must not wait for
#   a collective, which would never end. This one only notes the signal.
# - If only the rank that got the signal stops, the others wait for it until the grace period is
#   over.
# - Saving takes time, too. It must be much shorter than the grace period.
# - `TORCHELASTIC_RESTART_COUNT` counts the restarts on this machine (documented).
# - DDP does not continue bit for bit, but with a rounding error: it builds its buckets again.
# - A training that continues on another number of ranks adds in another order. So `load` refuses
#   it.

# %% [markdown]
# ## Write it yourself
#
# How often should a training save? Suppose that saving takes as long as 2 steps, and that there is
# one crash in 1,000 steps. If you save every k steps, saving costs 2 * 1000 / k steps in 1,000, and
# the crash costs k / 2 steps on average, which must be made again. Find the best k.
#
# <details><summary>Answer</summary>
#
# ```python
# def best_interval(rank, world_size, device):
#     k = torch.arange(1, 1001, dtype=torch.float64)
#     lost = 2 * 1000 / k + k / 2  # steps in 1,000: to save, and made again
#     best = int(k[lost.argmin()])
#     return {"save every": best, "lost of 1,000 steps": lost.min()}
# ```
#
# ```text
# best_interval: proved on all 4 ranks
#   rank  save every  lost of 1,000 steps
#   0     63          63.246
#   1     63          63.246
#   2     63          63.246
#   3     63          63.246
# ```
#
# This is the rule of J. W. Young: multiply twice the time to save by the time between two crashes,
# and take the square root. Here that is the square root of 4,000.
#
# </details>

# %% [markdown]
# ## Read on
#
# - J. W. Young, *A first order approximation to the optimum checkpoint interval* (1974).
# - [torchrun](https://docs.pytorch.org/docs/stable/elastic/run.html), in PyTorch's documentation:
#   restarts, and what the ranks find in their environment.
#
# In PyTorch's documentation:
#
# - [`all_reduce`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_reduce)
# - [`barrier`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.barrier)
# - [`get_rank`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.get_rank)
# - [`get_world_size`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.get_world_size)
# - [`init_process_group`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.init_process_group)
# - [`PrefixStore`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.PrefixStore)
# - [`TCPStore`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.TCPStore)
#
# Next lesson: [with_accelerate](../../notebooks/training/with_accelerate.ipynb), which wraps DDP
# and the sampler.
