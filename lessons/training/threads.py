# %% [markdown]
"""
# threads

Threads of one process can share the batch, too. That is what `nn.DataParallel` does with the GPUs
of a machine.

You will see that the model is the same, what is copied in each step, what `nn.DataParallel` does
without a GPU, and which code keeps the lock (GIL) that lets only one thread run Python.

    python lessons/training/threads.py
    torchrun --nproc-per-node 4 lessons/training/threads.py
"""

# %%
import copy
from concurrent.futures import ThreadPoolExecutor

from collectives import check, check_training
from collectives.lesson import Curve, digits, run
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

# %% [markdown]
# ## The idea
#
# In [data_parallel](../../notebooks/training/data_parallel.ipynb), n processes have a copy of the
# network each, for the whole training. Here one process starts n threads in each step, and each
# thread works on a copy. There is one optimizer, so the copies are made anew after each of its
# steps. Threads share the memory of their process, so no collective is needed.
#
# `nn.DataParallel` does this with a thread for each GPU: in each forward it copies the parameters
# and buffers from the first GPU to all others, cuts the batch, and collects the outputs on the
# first one; in backward, the gradients are added up there (documented). The batch size of its
# loader is that of all GPUs together.

# %% [markdown]
# ## The code
#
# This is the program of one_process.


# %%
def network(seed, device):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).double().to(device)


def shuffled():
    return torch.randperm(1797, generator=torch.Generator().manual_seed(0))


def train(model, backward, batches, device):
    torch.set_num_threads(1)  # the ranks of one machine share its cores
    images, labels = digits(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        losses.append(backward(model, images[batch], labels[batch]))
        optimizer.step()
    return (model, optimizer), Curve(losses)


def batch_loss(model, images, labels):
    loss = cross_entropy(model(images), labels)
    loss.backward()
    return loss.item()


# %% [markdown]
# ### Threads by hand
#
# There are as many threads as ranks in the other lessons. Every rank does all the work here: one
# process would do.


# %%
def in_threads(model, images, labels):
    n = dist.get_world_size()
    copies = [copy.deepcopy(model) for _ in range(n)]
    shards = [images[i::n] for i in range(n)], [labels[i::n] for i in range(n)]
    with ThreadPoolExecutor(n) as threads:
        losses = list(threads.map(batch_loss, copies, *shards))
    for name, parameter in model.named_parameters():
        parameter.grad = sum(one.get_parameter(name).grad for one in copies) / n
    return sum(losses) / n


def threads(rank, world_size, device):
    batches = shuffled().split(64 // world_size * world_size)[:-1]
    trained, losses = train(network(0, device), in_threads, batches, device)

    expected, _ = train(network(0, device), batch_loss, batches, device)
    # the ranks do not exchange anything, so their roundings may differ
    check_training(trained, expected, "threads and one process", same_bits=False)
    size = sum(parameter.nbytes for parameter in network(0, device).parameters())
    return {"loss": losses, "bytes copied": size * world_size * len(batches)}


# %% [markdown]
# **Predict first.** The network has 2,410 parameters of 8 bytes. How many bytes do four threads
# copy in 28 steps? Write the number down.

# %%
if __name__ == "__main__":
    run(threads)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 2,159,360: 4 copies of 19,280 bytes in each of 28 steps. Four processes copy the parameters once,
# before the first step. The picture has a single curve, because every rank does all the work. On n
# GPUs, `nn.DataParallel` copies n - 1 times in each step, because the first GPU has the parameters
# already (documented).
#
# </details>

# %% [markdown]
# ### nn.DataParallel without a GPU
#
# A hook notes how large the batches are that the network sees.


# %%
def data_parallel_on_cpu(rank, world_size, device):
    model, seen = network(0, device), []
    model.register_forward_pre_hook(lambda module, inputs: seen.append(len(inputs[0])))
    batches = shuffled().split(64)[:2]
    trained, _ = train(nn.DataParallel(model), batch_loss, batches, device)

    expected, _ = train(network(0, device), batch_loss, batches, device)
    check_training(trained, expected, "nn.DataParallel and one process")
    gpus = max(1, torch.cuda.device_count())
    check(sorted(seen), [64 // gpus] * 2 * gpus, "nn.DataParallel")
    return {"batches": seen}


# %% [markdown]
# **Predict first.** How many images does the network get at once? Write the number down.

# %%
if __name__ == "__main__":
    run(data_parallel_on_cpu)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 64, the whole batch. Without a GPU, `nn.DataParallel` calls the network as it is, and says
# nothing. With four GPUs it gets 16 (documented).
#
# </details>

# %% [markdown]
# ### The GIL
#
# Python runs one thread at a time: the one that holds the global interpreter lock (GIL). A function
# of numpy or torch can give it back while it computes in C. Save this program as `gil.py`.
# `setswitchinterval` makes a thread keep the GIL for a minute unless it gives it back. So another
# thread can count only if the work gives the GIL back, on any machine, however busy it is.
#
# ```python
# import multiprocessing
# import resource
# import sys
# import time
# from threading import Thread
#
# import numpy
# import torch
#
# torch.set_num_threads(1)
# numbers = numpy.random.default_rng(0).random(100_000)
# tensor = torch.from_numpy(numbers)
# WORK = {
#     "Python": lambda: [i * i for i in range(50_000)],
#     "numpy": lambda: numpy.sort(numbers),
#     "torch": lambda: tensor.sort(),
# }
#
#
# def others_run(work):
#     """Whether another thread gets on while this one works."""
#     count = [0]
#
#     def other():
#         while count:
#             count[0] += 1
#             time.sleep(0)  # gives the GIL back
#
#     sys.setswitchinterval(60)  # until then, a thread keeps the GIL unless it gives it back
#     thread = Thread(target=other)
#     thread.start()
#     found = False
#     for _ in range(50):
#         before = count[0]
#         work()
#         found = found or count[0] > before
#     count.clear()
#     sys.setswitchinterval(0.005)
#     thread.join()
#     return found
#
#
# def processor_seconds():
#     """Of this process and of its children."""
#     of = resource.getrusage
#     used = of(resource.RUSAGE_SELF), of(resource.RUSAGE_CHILDREN)
#     return sum(one.ru_utime + one.ru_stime for one in used)
#
#
# def cores(worker, work):
#     """How many cores two workers keep busy: the best of three rounds."""
#     found = []
#     for _ in range(3):
#         workers = [worker(target=lambda: [work() for _ in range(30)]) for _ in range(2)]
#         used, start = processor_seconds(), time.perf_counter()
#         for one in workers:
#             one.start()
#         for one in workers:
#             one.join()
#         found.append((processor_seconds() - used) / (time.perf_counter() - start))
#     return max(found)
#
#
# Process = multiprocessing.get_context("fork").Process
# for name, work in WORK.items():
#     print(f"{name}: another thread runs meanwhile: {others_run(work)}")
#     threads, processes = cores(Thread, work), cores(Process, work)
#     print(f"  two threads keep {threads:.1f} cores busy, two processes {processes:.1f}")
# ```
#
# `python gil.py` says, besides the numbers of cores:
#
# ```text
# Python: another thread runs meanwhile: False
# numpy: another thread runs meanwhile: True
# torch: another thread runs meanwhile: True
# ```
#
# With Python code, two threads keep no more than one core busy, however many cores there are. Two
# processes can keep two cores busy, if no other program needs them, and so can two threads with
# numpy or torch. Look at the numbers that the program prints on your machine. In a step of a
# training, Python runs between the kernels (the computations in C). If the kernels are short, the
# threads of `nn.DataParallel` wait for one another. On a Python without the GIL (3.13t or later)
# the first line should be True, too; it was not tried here.

# %%
STEPS = [threads, data_parallel_on_cpu]

# %% [markdown]
# ## The proof
#
# `check_training` compares the model that the threads trained with that of one process, and the
# model inside `nn.DataParallel`, too.

# %% [markdown]
# ## Make it wrong
#
# Each of these is one change. Make it, run the steps, read what the proof says, and undo it.
#
# 1. **The sum for the mean.** In `in_threads`, change `for one in copies) / n` to `for one in
#    copies)`. It says `rank 0/4: 0.bias.momentum_buffer: relative error 5`.
# 2. **The copies are not made anew.** In `in_threads`, change `copy.deepcopy(model)` to `network(0,
#    images.device)`. It says `rank 0/4: 2.bias.momentum_buffer: relative error 2`. They keep the
#    first parameters.
# 3. **Every thread takes the same shard.** In `in_threads`, change `[images[i::n] for i in
#    range(n)], [labels[i::n]` to `[images[::n] for i in range(n)], [labels[::n]`. It says `rank
#    0/4: 2.bias.momentum_buffer: relative error 2`.

# %% [markdown]
# ## Pitfalls
#
# - `nn.DataParallel` takes one process and one machine. PyTorch's documentation recommends
#   DistributedDataParallel also for one machine (documented).
# - Its first GPU holds the outputs and the sum of the gradients, so its memory is full first
#   (documented).
# - What a replica writes into itself in forward, such as a counter, is lost with the replica. Only
#   the first GPU's buffers stay (documented).
# - DDP uses one GPU for each process. Its batch size is that of one process, that of
#   `nn.DataParallel` is that of all GPUs.
# - Threads that share one model add up in the same `.grad`. So each needs a copy.

# %% [markdown]
# ## Write it yourself
#
# Let the threads share one network, without copies: `torch.autograd.grad` returns the gradients and
# leaves `.grad` alone. Prove that the model is the same.
#
# <details><summary>Answer</summary>
#
# ```python
# def shared_network(rank, world_size, device):
#     def gradients(model, images, labels):
#         loss = cross_entropy(model(images), labels)
#         return torch.autograd.grad(loss, list(model.parameters()))
#
#     def without_copies(model, images, labels):
#         n = world_size
#         shards = [images[i::n] for i in range(n)], [labels[i::n] for i in range(n)]
#         with ThreadPoolExecutor(n) as threads:
#             found = list(threads.map(gradients, [model] * n, *shards))
#         for parameter, *grads in zip(model.parameters(), *found, strict=True):
#             parameter.grad = sum(grads) / n
#         return 0.0
#
#     batches = shuffled().split(64 // world_size * world_size)[:-1]
#     trained, _ = train(network(0, device), without_copies, batches, device)
#     expected, _ = train(network(0, device), batch_loss, batches, device)
#     check_training(trained, expected, "one network for all threads")
#     return {"copies": 0, "threads": world_size}
# ```
#
# ```text
# shared_network: proved on all 4 ranks
#   rank  copies  threads
#   0     0       4
#   1     0       4
#   2     0       4
#   3     0       4
# ```
#
# </details>

# %% [markdown]
# ## Read on
#
# - [DataParallel](https://docs.pytorch.org/docs/stable/generated/torch.nn.DataParallel.html) and
#   its warning, in PyTorch's documentation.
# - [Free-threaded Python](https://docs.python.org/3/howto/free-threading-python.html), in Python's
#   documentation.
#
# In PyTorch's documentation:
#
# - [`get_world_size`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.get_world_size)
#
# Next lesson: [to_the_gpu](../../notebooks/training/to_the_gpu.ipynb), the same program on GPUs.
