# %% [markdown]
"""
# threads: DataParallel, the GIL, and why DDP starts processes

Threads of one process run Python one at a time, so training starts processes.

You find `nn.DataParallel` in old code, one line instead of `torchrun`, and ask why anybody bothers
with processes. At the end of this lesson you can answer: you train with threads, as that line does,
count what goes through the first GPU in every step, and see which work lets another thread run
meanwhile.

    python lessons/training/threads.py
    torchrun --nproc-per-node 4 lessons/training/threads.py
"""

# %%
import copy
import select
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Thread
from collectives import check, check_training, computed, run
from one_process import batch_loss, network, shuffled, train
import numpy
import torch
from torch.nn.functional import cross_entropy

# %% [markdown]
# ## The idea
#
# Python runs one thread at a time, the one that holds the global interpreter lock (GIL). But a
# function of numpy or torch can give the lock back while it computes in C.
#
# `nn.DataParallel` trains with a thread for each GPU, which works on its part of the batch. Between
# the kernels (the computations on a GPU), each thread runs Python, so if the kernels are short, the
# threads wait for one another. PyTorch recommends DDP instead, also on one machine ([its
# documentation](https://docs.pytorch.org/docs/stable/generated/torch.nn.DataParallel.html)).
#
# | | `nn.DataParallel` | DDP |
# |---|---|---|
# | processes | one, with a thread for each GPU | one for each GPU |
# | machines | one | any number |
# | the model | is copied to all GPUs in each forward | stays on its GPU |
# | through GPU 0 go | parameters, inputs, outputs, gradients | its own gradients |

# %% [markdown]
# ## The code
#
# `nn.DataParallel(model, device_ids=[0, 1, 2, 3])` is all that a program needs, but it needs GPUs.
# `in_threads` does the same by hand. In every step it replicates the model for four threads, each
# of which computes the outputs of a part of the batch. All outputs go into one loss, that of the
# whole batch, and after `backward()` the gradients of the replicas are added up in the model. Every
# rank of this step does all of that alone.

# %% [markdown]
# **Predict first.** Data parallel training averages the gradients of the ranks. Here they are
# summed. Is the result that of one process?


# %%
def in_threads(model, images, labels):
    replicas = [copy.deepcopy(model) for _ in range(4)]  # anew, because step() changed the model
    with ThreadPoolExecutor(4) as threads:
        parts = threads.map(lambda replica, x: replica(x), replicas, images.tensor_split(4))
        loss = cross_entropy(torch.cat(list(parts)), labels)
    loss.backward()
    for parameter, *shares in zip(*(one.parameters() for one in [model, *replicas]), strict=True):
        parameter.grad = sum(share.grad for share in shares)
    return loss.item()


def threads(rank, world_size, device):
    def note(replica, inputs):
        meeting.wait()  # until four threads are here at once
        images.append(len(inputs[0]))

    model, images, meeting = network(0, device), [], Barrier(4, timeout=20)
    model.register_forward_pre_hook(note)  # a replica has it, too
    trained, losses = train(model, in_threads, shuffled().split(64), device)

    expected, _ = train(network(0, device), batch_loss, shuffled().split(64), device)
    # each rank trains alone, so roundings may differ
    check_training(trained, expected, "four threads and one process", same_bits=False)
    check(images[:112], [16] * 112, "images of each replica")  # the last batch is small
    return {"loss": losses}


# %%
if __name__ == "__main__":
    run(threads, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Yes: the loss is the mean over the whole batch, so each replica holds its share of one gradient.
# With DDP each rank has a loss of its own, the mean over its part, which is why their gradients are
# averaged.
#
# </details>
#
# ### What goes through the first GPU
#
# So threads give the right model. What they cost shows at the first GPU. With `nn.DataParallel`,
# the batch, the model, the loss and the optimizer are all on it, so in every step it sends
# parameters and images to all other GPUs, receives their outputs, returns the gradients of the
# outputs, and receives those of the parameters. With DDP, every GPU sends and receives gradients
# only. The step computes the bytes at the first GPU for a whole batch.

# %% [markdown]
# **Predict first.** You double the number of GPUs. Whose bytes at least double, too: those of
# `nn.DataParallel`, or those of DDP?


# %%
@computed
def through_gpu_0(rank, world_size, device):
    gpus = 2 ** (rank + 1)
    model = sum(parameter.nbytes for parameter in network(0, device).parameters())
    copies = 2 * model * (gpus - 1)  # the parameters leave, and their gradients enter
    batch = 8 * 64 * (64 + 10 + 10) * (gpus - 1) // gpus  # images, outputs, and their gradients
    ring = 4 * model * (gpus - 1) / gpus  # sent and received
    check(float(copies), ring * gpus / 2, "n / 2 times as much as a ring")
    return {"GPUs": gpus, "DataParallel": copies + batch, "DDP": int(ring)}


# %%
if __name__ == "__main__":
    run(through_gpu_0, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Those of `nn.DataParallel`: each further GPU gets a copy of the model from the first one, so all
# wait for it. Is it slower than one GPU, as one reads? It is if these bytes take longer than the
# computing that the other GPUs save, so it depends on the model and the links. The bytes of DDP
# stay below `4 * 19,280 = 77,120`, however many GPUs there are.
#
# </details>
#
# ### The GIL
#
# Even with one GPU for each thread the threads share one interpreter. `others_run` works in one
# thread, while another one counts. `setswitchinterval` makes a thread keep the GIL for a minute
# unless it gives it back. So if the counter moves, the work has given the GIL back, however fast or
# busy the machine is.

# %% [markdown]
# **Predict first.** You divide each of these among two threads: a loop in Python, a sort in numpy,
# a sort in torch, waiting for a socket. Which of the four becomes no faster?


# %%
def others_run(work):
    """Whether another thread gets on while this one works."""
    count = [0]

    def other():
        while count:
            count[0] += 1
            time.sleep(0)  # gives the GIL back

    before = sys.getswitchinterval()
    sys.setswitchinterval(60)  # until then, a thread keeps the GIL unless it gives it back
    thread = Thread(target=other)
    thread.start()
    found = False
    for _ in range(50):
        start = count[0]
        work()
        found = found or count[0] > start
    count.clear()
    sys.setswitchinterval(before)
    thread.join()
    return found


def gil(rank, world_size, device):
    torch.set_num_threads(1)
    numbers = numpy.random.default_rng(0).random(100_000)
    tensor = torch.from_numpy(numbers)
    found = {
        "Python": others_run(lambda: [i * i for i in range(50_000)]),
        "numpy": others_run(lambda: numpy.sort(numbers)),
        "torch": others_run(tensor.sort),
    }
    with socket.socket(type=socket.SOCK_DGRAM) as quiet:  # nothing comes: `select` waits for 1 ms
        found["I/O"] = others_run(lambda: select.select([quiet], [], [], 0.001))
    expected = {"Python": False, "numpy": True, "torch": True, "I/O": True}
    check(found, expected, "another thread runs meanwhile")
    return found


# %%
if __name__ == "__main__":
    run(gil, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# The loop in Python, because it never lets another thread run: however many cores there are, two
# threads of Python code keep one of them busy. A thread gives the GIL back during I/O, so threads
# suit programs that mostly wait for disks and networks. Training computes, so ranks are processes,
# each with a GIL of its own.
#
# </details>

# %%
STEPS = [threads, through_gpu_0, gil]

# %% [markdown]
# ## The proof
#
# `check_training` compares the model of the threads with that of one process, and `note` shows that
# four threads compute at once, 16 images each. In `gil`, `check` compares what each rank finds with
# what is known of the four.

# %% [markdown]
# ## On GPUs
#
# - `nn.DataParallel` copies in each forward (`torch/nn/parallel/data_parallel.py`: "In each
#   forward, :attr:`module` is **replicated** on each device").
# - A model that is cut over GPUs trains [with DDP
#   only](https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html)
#   (`torch/nn/parallel/distributed.py`: "For multi-device modules and CPU modules, ``device_ids``
#   must be ``None``").

# %% [markdown]
# ## Make it wrong
#
# Make one change, run the steps, read what the proof says, and undo it.
#
# 1. **The mean for the sum.** In `in_threads`, change `sum(share.grad for share in shares)` to
#    `sum(share.grad for share in shares) / 4`. It says `momentum_buffer: relative error 0.9`.
# 2. **The replicas are not made anew.** In `in_threads`, change `copy.deepcopy(model)` to
#    `network(0, images.device)`. It says `0.bias.momentum_buffer: relative error 2`: they keep the
#    first parameters.
# 3. **Python gives the GIL back.** In `others_run`, change `sys.setswitchinterval(60)` to
#    `sys.setswitchinterval(1e-6)`. It says `got {'Python': True`: threads take turns on one core.

# %% [markdown]
# ## Pitfalls
#
# - Without a GPU, `nn.DataParallel` calls the model as it is (`torch/nn/parallel/data_parallel.py`:
#   "if not self.device_ids: return self.module(*inputs, **kwargs)").
# - The batch size of `nn.DataParallel` is that of all GPUs, and with DDP that of one process.

# %% [markdown]
# ## Read on
#
# - [train_dp.py](../../examples/train_dp.py) trains with `nn.DataParallel`, to the parameters of
#   [train_ddp.py](../../examples/train_ddp.py): lay the two side by side.
# - [Free-threaded Python](https://docs.python.org/3/howto/free-threading-python.html), which has no
#   GIL.
#
# So one process for each GPU it is. Next lesson:
# [to_the_gpu](../../notebooks/training/to_the_gpu.ipynb), which takes the programs of this chapter
# there.
