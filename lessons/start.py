# %% [markdown]
"""
# start: two copies of one script, and the words rank, world and backend

Distributed PyTorch is one script, started once per GPU. Each copy is an ordinary process with its
own memory, and the copies talk to each other through `torch.distributed`.

In this lesson you start two copies of a small training, see that they stay one model, and pick up
the few words that everything else here is built on.

    python lessons/start.py
    torchrun --nproc-per-node 4 lessons/start.py
"""

# %%
from collectives import check, run
import torch
import torch.distributed as dist

# %% [markdown]
# ## The result first
#
# Training is slow, and you have more than one GPU. So give each GPU a copy of the model and other
# samples. After `backward()` every copy has a gradient of its own, and if each took a step with it,
# the copies would drift apart. So they average their gradients first:
#
# ![Two ranks, one step: equal weights, other samples, own gradients, one mean, equal
# weights.](../docs/data_parallel.svg)
#
# This is data parallel training, and the whole of it fits on one screen. Save this as
# `first_training.py`, or take [the file](../examples/first_training.py):
#
# ```python
# import torch
# import torch.distributed as dist
#
# dist.init_process_group()  # meet the other copies of this program
# rank, n = dist.get_rank(), dist.get_world_size()
# torch.set_default_device(f"cuda:{rank}" if torch.cuda.device_count() >= n else "cpu")
#
# x = torch.arange(1.0, 9.0)[rank::n]  # of 8 samples, this copy takes every n-th
# y = 3 * x  # so the weight has to become 3
# weight = torch.tensor([1.0 + rank], requires_grad=True)  # each copy has another first weight ...
# dist.broadcast(weight.data, src=0)  # ... and now all have that of rank 0
#
# for step in range(1, 3):
#     weight.grad = None
#     loss = ((weight * x - y) ** 2).mean()
#     loss.backward()
#     own = weight.grad.item()
#     dist.all_reduce(weight.grad)  # add up the gradients of all copies ...
#     weight.grad /= n  # ... and take their mean
#     weight.data -= 0.01 * weight.grad  # the same step on every copy
#     mean, new = weight.grad.item(), weight.item()
#     print(f"rank {rank}, step {step}: own gradient {own:.2f}, mean {mean:.2f}, weight {new:.2f}")
#
# dist.destroy_process_group()
# ```
#
# `torchrun` starts it as often as you say. First one process, with all 8 samples:
#
# ```console
# $ torchrun --nproc-per-node 1 first_training.py
# rank 0, step 1: own gradient -102.00, mean -102.00, weight 2.02
# rank 0, step 2: own gradient -49.98, mean -49.98, weight 2.52
# ```
#
# Then two, with 4 each:
#
# ```console
# $ torchrun --nproc-per-node 2 first_training.py
# rank 0, step 1: own gradient -84.00, mean -102.00, weight 2.02
# rank 0, step 2: own gradient -41.16, mean -49.98, weight 2.52
# rank 1, step 1: own gradient -120.00, mean -102.00, weight 2.02
# rank 1, step 2: own gradient -58.80, mean -49.98, weight 2.52
# ```
#
# On your screen the lines may come out in another order, or run together, because the processes
# print independently. The warning about `OMP_NUM_THREADS` is harmless.
#
# Look at the weights: two copies, each with half of the work, trained the model of one process.

# %% [markdown]
# ## The words
#
# Each process is called a [rank](../docs/glossary.md#rank), and so is its number: 0, 1, 2, 3. How
# many there are is the [world size](../docs/glossary.md#world-size), or n. A
# [group](../docs/glossary.md#group) is a set of ranks that communicate: all of them, or a chosen
# few. The [backend](../docs/glossary.md#backend) is the library that moves the data: here gloo,
# which needs no GPU. Where the program finds a GPU for each copy, it puts its tensors there, and
# NCCL moves them.
#
# `init_process_group` connects the ranks. It reads their numbers in [environment
# variables](../notebooks/launching.ipynb) that torchrun sets. So plain `python first_training.py`
# fails: `ValueError: Error initializing torch.distributed using env:// rendezvous: environment
# variable RANK expected, but not set`.

# %% [markdown]
# ## run and check
#
# In the lessons, a step is a function that every rank calls. This one adds up a number of each:


# %%
def start(rank, world_size, device):
    x = torch.tensor([10**rank], device=device)
    dist.all_reduce(x)
    # proof
    check([dist.get_rank(), dist.get_world_size()], [rank, world_size], "get_rank, get_world_size")
    check(x, torch.tensor([(10**world_size - 1) // 9]), "all_reduce")  # 1 + 10 + 100 + ...
    return {"x": x}


# %%
if __name__ == "__main__":
    run(start)

# %% [markdown]
# `run(step)` replaces torchrun: it starts four processes, connects them, calls the step in each,
# and prints what each one returned, here 1111, a digit from every rank. `device` is where tensors
# belong: with gloo, on the CPU. With `folded=True` a notebook hides the output until you have
# answered the question above it.
#
# `check(got, expected, call)` fails unless every element is as expected. The lines below `# proof`
# compute the expected value, without `torch.distributed`, so answer a question before you read
# them. `proved on all 4 ranks` means that every rank has that value. Two lines stand in every
# lesson: below `if __name__ == "__main__":` a step runs only if you have started this very file,
# and `STEPS` lists the steps for `collectives run`. Your own programs need none of all this.

# %% [markdown]
# ## Nothing is shared
#
# Each rank appends its number to a list, `visitors`. Then all wait in `dist.barrier()`, which
# returns on a rank only when every rank has called it.

# %% [markdown]
# **Predict first.** Which list does rank 2 of four return?

# %%
visitors = []


def no_shared_memory(rank, world_size, device):
    visitors.append(rank)
    dist.barrier()  # now all ranks have appended
    check(visitors, [rank], "what a rank sees")  # proof
    return {"visitors": visitors}


# %%
if __name__ == "__main__":
    run(no_shared_memory, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# `[2]`. Each process has its own memory, so there are four lists. A rank gets the data of another
# one only by a call of `torch.distributed`.
#
# </details>

# %% [markdown]
# ### The one rule
#
# `all_reduce` and `barrier` are [collectives](../docs/glossary.md#collective): calls that every
# rank of a group makes. *Every rank makes the same collectives, in the same order.* The most common
# mistake breaks this rule:
#
# ```python
# if rank == 0:
#     dist.barrier()  # no other rank calls it, so rank 0 waits
# ```
#
# Rank 0 waits until gloo's time limit, 30 minutes, or until the other ranks end: then it fails with
# `Connection closed by peer`. Use `if rank == 0:` for a `print`, but not for a collective. If your
# program hangs, put `collectives diagnose --` in front of its command to see who waits, and where.

# %% [markdown]
# ## On GPUs
#
# - Use the backend "nccl", and one process for each GPU. Select the GPU by `LOCAL_RANK`, because
#   every machine counts its GPUs from 0
#   ([torchrun](https://docs.pytorch.org/docs/stable/elastic/run.html)). The program above takes the
#   rank for it, which is the same number as long as there is one machine.

# %%
STEPS = [start, no_shared_memory]

# %% [markdown]
# ## Read on
#
# In PyTorch's documentation: [torchrun](https://docs.pytorch.org/docs/stable/elastic/run.html) and
#
# - [`init_process_group`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.init_process_group)
# - [`get_rank`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.get_rank)
# - [`get_world_size`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.get_world_size)
#
# Two ways lead on. Next lesson: [two_copies](../notebooks/route/two_copies.ipynb), where a training
# script becomes a DDP training, in nine lessons. Or read about the calls one by one, beginning with
# [all_reduce](../notebooks/all_reduce.ipynb).
