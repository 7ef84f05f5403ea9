# %% [markdown]
"""
# failover: a rank is killed, and torchrun restarts the training

A process is killed in the middle of the training, torchrun starts all ranks again, and they
continue from the newest checkpoint.

It is three in the morning, and one of your ranks is gone. At the end of this lesson your program
survives that, wherever it is killed, and ends with the bits of an undisturbed training; and all its
ranks stop together when the cluster asks one of them to.

    python lessons/training/failover.py
    torchrun --nproc-per-node 4 lessons/training/failover.py
"""

# %%
import os
import signal
from tempfile import TemporaryDirectory
from collectives import Curve, check, check_training, digits, needs, run
import torch
import torch.distributed as dist
from accidents import at_call, survive
from checkpoint import load, save
from data_parallel import batch_loss, on_my_shard
from one_process import network, shuffled
from torch.distributed.rendezvous import rendezvous
from torch.distributed.run import get_args_parser

# %% [markdown]
# ## The idea
#
# You cannot replace one rank alone, because all others wait for it in a collective. So the launcher
# ends all ranks and starts all of them again. Four things are left to your program. Three you know
# from [checkpoint](../../notebooks/training/checkpoint.ipynb): the newest file is complete wherever
# the program is killed, the program loads before it trains, and a step that is made again gives the
# same bits. The fourth is new: the new ranks must not find the addresses of the killed ones.
#
# Some failures are announced. A cluster that needs its machines sends the signal SIGTERM to the
# processes, waits for a grace period, and only then kills them with SIGKILL.

# %% [markdown]
# ## The code
#
# The ranks write their addresses into a store. torchrun keeps its store when it restarts them, so
# the new ranks may read the addresses of the killed ones
# ([pytorch#135712](https://github.com/pytorch/pytorch/issues/135712)). `meet` puts the number of
# the restart in front of all keys.
#
# A SIGTERM may reach only one of the ranks. If this rank stopped at once, all others would wait for
# it, so its handler only notes the signal. After each step the ranks ask each other whether it has
# reached any of them, and if so, all save and stop.


# %%
def meet():
    store, rank, n = next(rendezvous("env://"))
    store = dist.PrefixStore(os.environ["TORCHELASTIC_RESTART_COUNT"], store)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=n)


signals = []  # of this rank


def asked_to_stop(device):
    count = torch.tensor([len(signals)], device=device)
    dist.all_reduce(count, op=dist.ReduceOp.MAX)
    return count.item() > 0


def train(model, backward, batches, device, folder=None):
    torch.set_num_threads(1)  # the ranks of one machine share its cores
    images, labels = digits(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    done = load(folder, model, optimizer) if folder else 0
    losses = []
    for step, batch in enumerate(batches[done:], done + 1):
        optimizer.zero_grad()
        losses.append(backward(model, images[batch], labels[batch]))
        optimizer.step()
        stop = folder and asked_to_stop(device)
        if folder and (stop or step % 5 == 0):
            save(folder, step, model, optimizer)
        if stop:
            break
    return (model, optimizer), Curve(losses, done=done)


# %% [markdown]
# ### SIGTERM
#
# First the friendly way. The last rank gets a SIGTERM before its 8th `SGD.step`. `at_call` and
# `survive` (below) are in [accidents.py](../../lessons/training/accidents.py).

# %% [markdown]
# **Predict first.** The signal reaches one of the ranks in step 8, and every fifth step is saved.
# Does the second training make a step again?


# %%
def failover(rank, world_size, device):
    batches = shuffled().split(64 // world_size * world_size)[:25]
    number = 8 if rank == world_size - 1 else 0
    handler = signal.signal(signal.SIGTERM, lambda number, frame: signals.append(number))
    with TemporaryDirectory() as folder:
        with at_call(torch.optim.SGD, "step", number, lambda: signal.raise_signal(signal.SIGTERM)):
            _, first = train(network(0, device), on_my_shard, batches, device, folder)
        number_of_signals = len(signals)
        signals.clear()
        continued, second = train(network(1, device), on_my_shard, batches, device, folder)
    signal.signal(signal.SIGTERM, handler)  # the old one

    undisturbed, _ = train(network(0, device), on_my_shard, batches, device)
    expected, _ = train(network(0, device), batch_loss, batches, device)
    check_training(continued, undisturbed, "after SIGTERM", limit=0.0)  # bit for bit
    check_training(continued, expected, "one process")
    steps = [len(first.values), len(second.values)]
    check(steps, [8, len(batches) - 8], "steps before and after")
    check(number_of_signals, int(rank == world_size - 1), "SIGTERMs that this rank got")
    both = Curve(first.values + second.values, marks={second.done: "SIGTERM, then a new start"})
    return {"loss": both, "before": steps[0], "after": steps[1]}


# %%
if __name__ == "__main__":
    run(failover, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# No: after step 8 all ranks save and stop together, although 8 is not a fifth step. 25 - 8 = 17
# steps are left.
#
# </details>

# %% [markdown]
# ### Killed in a step
#
# A SIGKILL leaves no time to save. Now `survive` starts `torchrun --nproc-per-node 2 --max-restarts
# 1`, because by default torchrun restarts nothing, although one reads that it does so by itself.
# Its ranks call `meet` and `train`, and in the first start one of them kills itself, here rank 1
# before its 8th `SGD.step`. `survive` compares the end with an undisturbed training (bit for bit)
# and with one process, and counts the steps that each start begins.

# %% [markdown]
# **Predict first.** 25 steps are to be made. With which step does the second start begin?


# %%
def steps_left(step):
    """After the newest checkpoint, if a rank is killed in this step."""
    return 25 - (step - 1) // 5 * 5


@needs(ranks=1, seconds=150)
def killed_in_a_step(rank, world_size, device):
    check(get_args_parser().get_default("max_restarts"), 0, "restarts of torchrun by itself")
    first, second = survive(device, victim=1, call="torch.optim.SGD.step", number=8)
    check([first, second], [8, steps_left(8)], "steps of each start")
    return {"first start": first, "second start": second}


# %%
if __name__ == "__main__":
    run(killed_in_a_step, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# It makes 20 steps, so it begins after step 25 - 20 = 5, the last one that was saved.
#
# </details>

# %% [markdown]
# ### Killed in an all_reduce
#
# It can be worse: rank 1 dies while rank 0 waits for it. A step calls `all_reduce` for each of 4
# parameters, and once to ask for signals, so the 63rd call is in step 13, and rank 0 is in it, too.


# %%
@needs(ranks=1, seconds=150)
def killed_in_an_all_reduce(rank, world_size, device):
    first, second = survive(device, victim=1, call="torch.distributed.all_reduce", number=63)
    check([first, second], [13, steps_left(13)], "steps of each start")
    return {"first start": first, "second start": second}


# %%
if __name__ == "__main__":
    run(killed_in_an_all_reduce)

# %% [markdown]
# ### Killed while it saves
#
# The worst moment is in the middle of a save. Rank 0 is killed before it calls `os.fsync` for the
# second time, when it saves step 10. `load` does not look for the name of the draft, so the second
# start makes the 20 steps from 6 on.


# %%
@needs(ranks=1, seconds=150)
def killed_while_it_saves(rank, world_size, device):
    first, second = survive(device, victim=0, call="os.fsync", number=2)
    check([first, second], [10, steps_left(10)], "steps of each start")
    return {"first start": first, "second start": second}


# %%
if __name__ == "__main__":
    run(killed_while_it_saves)

# %%
STEPS = [failover, killed_in_a_step, killed_in_an_all_reduce, killed_while_it_saves]

# %% [markdown]
# ## The proof
#
# After each interruption the parameters and the momentum have the same bits as without it. The
# tests also kill a rank at other moments, such as between the draft and its name.

# %% [markdown]
# ## Make it wrong
#
# Make one change, run the steps, read what the proof says, and undo it.
#
# 1. **The optimizer is forgotten.** In `train`, change `load(folder, model, optimizer)` to
#    `load(folder, model, torch.optim.SGD(model.parameters(), momentum=0.9))`. It says `relative
#    error`.
# 2. **The epoch begins again.** In `train`, change `batches[done:], done + 1` to `batches, done +
#    1`. It says `relative error`.

# %% [markdown]
# ## Pitfalls
#
# - Without the prefix a restart works by luck, because the rank that comes first finds the address
#   of its dead peer. [15 of 20
#   runs](../../docs/machines.md#torchruns-restart-that-never-comes-back) failed.
# - On several machines with `--rdzv-backend c10d`, ranks can have different prefixes, because each
#   agent counts its own restarts. So set `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1` and leave out the
#   prefix.
# - A rank that dies ends all other ranks, too, because their next collective raises `Connection
#   closed by peer` or `Connection reset by peer`. Let the rank end, so that torchrun restarts it.
# - When one rank has failed, torchrun sends SIGTERM to all that are left. Their handler must not
#   wait for a collective, which would never end.

# %% [markdown]
# ## Read on
#
# - In the program to take home, [`is_stopped`](../../examples/train_ddp.py) has it:
#   `dist.all_reduce(count, op=dist.ReduceOp.MAX)`.
# - In the program to take home, [`start`](../../examples/train_ddp.py) has it:
#   `dist.PrefixStore(os.environ["TORCHELASTIC_RESTART_COUNT"], store)`.
#
# Next lesson: [with_accelerate](../../notebooks/training/with_accelerate.ipynb), a library that
# writes much of it for you.
