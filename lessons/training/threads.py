# %% [markdown]
"""
# threads

Threads of one process run Python one at a time, so training starts processes.

You will see which work lets another thread run meanwhile, and why `nn.DataParallel`, which has a
thread for each GPU, gave way to DistributedDataParallel.

    python lessons/training/threads.py
    torchrun --nproc-per-node 4 lessons/training/threads.py
"""

# %%
import sys
import time
from threading import Thread
from collectives import check, run
import numpy
import torch

# %% [markdown]
# ## The idea
#
# Python runs one thread at a time: the one that holds the global interpreter lock (GIL). A function
# of numpy or torch can give it back while it computes in C.
#
# `nn.DataParallel` trains with threads: a thread for each GPU works on its part of the batch.
# Between the kernels (the computations on a GPU), each thread runs Python. So if the kernels are
# short, the threads wait for one another. PyTorch recommends DDP instead, also on one machine
# (`torch/nn/parallel/data_parallel.py`: "It is recommended to use
# :class:`~torch.nn.parallel.DistributedDataParallel`, instead of this class, to do multi-GPU
# training, even if there is only a single node.").
#
# | | `nn.DataParallel` | DDP |
# |---|---|---|
# | processes | one, with a thread for each GPU | one for each GPU |
# | machines | one | any number |
# | the model | is copied to all GPUs in each forward | stays on its GPU |
# | through GPU 0 go | parameters, inputs, outputs, gradients | its own gradients |
# | `optimizer.step()` | sends nothing | sends nothing |
# | a model cut over several GPUs | does not work | works, with `device_ids=None` |

# %% [markdown]
# ## The code
#
# `others_run` works in one thread, while another one counts. `setswitchinterval` makes a thread
# keep the GIL for a minute unless it gives it back. So if the counter moves, the work has given the
# GIL back. This does not depend on how fast or how busy the machine is.


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
    check(found, {"Python": False, "numpy": True, "torch": True}, "another thread runs meanwhile")
    return found


# %% [markdown]
# **Predict first.** Which of the three keeps the other thread from running: a loop in Python, a
# sort in numpy, or a sort in torch?

# %%
if __name__ == "__main__":
    run(gil)

# %% [markdown]
# <details><summary>Answer</summary>
#
# The loop in Python: however many cores there are, two threads of Python code keep one of them
# busy. The ranks of a process group are processes. Each has a GIL of its own.
#
# </details>

# %%
STEPS = [gil]

# %% [markdown]
# ## The proof
#
# `check` compares what each rank finds with what is known of the three. On a Python without the GIL
# (3.13t or later) the first should be True, too; it was not tried here.

# %% [markdown]
# ## On GPUs
#
# - `nn.DataParallel` begins and ends on GPU 0 (`torch/nn/parallel/data_parallel.py`: "must have its
#   parameters and buffers on ``device_ids[0]`` before running").
# - It copies in each step, and not in `step()` (`torch/nn/parallel/data_parallel.py`: "In each
#   forward, :attr:`module` is **replicated** on each device").
# - A model that is cut over GPUs trains [with DDP
#   only](https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html)
#   (`torch/nn/parallel/distributed.py`: "For multi-device modules and CPU modules, ``device_ids``
#   must be ``None``").

# %% [markdown]
# ## Make it wrong
#
# Each of these is one change. Predict what goes wrong. Then make it, run the steps, read what the
# proof says, and undo it.
#
# 1. **Python gives the GIL back.** In `others_run`, change `sys.setswitchinterval(60)` to
#    `sys.setswitchinterval(1e-6)`.
#
#    <details><summary>Answer</summary>
#
#    It says `got {'Python': True`. Python now changes threads often, but two threads still share
#    one core.
#
#    </details>

# %% [markdown]
# ## Pitfalls
#
# - Without a GPU, `nn.DataParallel` calls the model as it is (`torch/nn/parallel/data_parallel.py`:
#   "if not self.device_ids: return self.module(*inputs, **kwargs)").
# - The batch size of `nn.DataParallel` is that of all GPUs. That of DDP is the batch size of one
#   process.

# %% [markdown]
# ## Read on
#
# - [DataParallel](https://docs.pytorch.org/docs/stable/generated/torch.nn.DataParallel.html), in
#   PyTorch's documentation.
# - [Free-threaded Python](https://docs.python.org/3/howto/free-threading-python.html), in Python's
#   documentation.
#
# Next lesson: [to_the_gpu](../../notebooks/training/to_the_gpu.ipynb), the same program on GPUs.
