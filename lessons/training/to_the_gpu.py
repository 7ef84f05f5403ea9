# %% [markdown]
"""
# to_the_gpu

The programs of this chapter run on GPUs after five changes, and one file serves both.

You will see the five changes, that they leave the training on the CPU as it was, in which type the
gradients are reduced under bfloat16 autocast, and what precision that costs.

    python lessons/training/to_the_gpu.py
    torchrun --nproc-per-node 4 lessons/training/to_the_gpu.py
"""

# %%
from functools import partial

from collectives import check, check_training
from collectives.lesson import Curve, digits, run
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.utils import parameters_to_vector
from torch.utils.data import DataLoader, TensorDataset

# %% [markdown]
# ## The idea
#
# The calls of torch.distributed are the same on CPU and GPU. What changes is where the tensors are,
# and who carries them. This program was run on the CPU only; what it says of GPUs is documented.
#
# | | on the CPU | on the GPU |
# |---|---|---|
# | 1. device | `torch.device("cpu")` | `torch.cuda.set_device(local_rank)` |
# | 2. backend | `init_process_group("gloo")` | `init_process_group("nccl")` |
# | 3. model | `DDP(model)` | `DDP(model.to(device), device_ids=[device.index])` |
# | 4. data | as they are | `DataLoader(..., pin_memory=True)`, `.to(device, non_blocking=True)` |
# | 5. types | float64, for the proof | float32 parameters, `torch.autocast(..., torch.bfloat16)` |
#
# `local_rank` is the number of the process on its machine: torchrun says it in `LOCAL_RANK`. The
# rank is the number among all machines. Without `set_device`, all processes of a machine use GPU 0
# (documented).

# %% [markdown]
# ## The code
#
# `run` makes changes 1 and 2: it chooses the backend, sets the device, and hands it to the step.
# Copies from pinned memory can go on while the GPU computes (documented). On the CPU,
# `non_blocking=True` changes nothing.


# %%
def network(seed, device):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).double().to(device)


def shuffled():
    return torch.randperm(1797, generator=torch.Generator().manual_seed(0))


def train(model, backward, batches, device):
    torch.set_num_threads(1)  # the ranks of one machine share its cores
    pin = device.type == "cuda"
    loader = DataLoader(TensorDataset(*digits()), batch_sampler=batches, pin_memory=pin)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for images, labels in loader:
        images = images.to(device, next(model.parameters()).dtype, non_blocking=True)
        optimizer.zero_grad()
        losses.append(backward(model, images, labels.to(device, non_blocking=True)))
        optimizer.step()
    return (model, optimizer), Curve(losses)


def batch_loss(model, images, labels, autocast=False):
    with torch.autocast(images.device.type, torch.bfloat16, enabled=autocast):
        loss = cross_entropy(model(images), labels)
    loss.backward()
    return loss.item()


# %%
def on_my_shard(model, images, labels, autocast=False):
    rank, n = dist.get_rank(), dist.get_world_size()
    return batch_loss(model, images[rank::n], labels[rank::n], autocast)


def wrapped(model, device):
    return DDP(model, device_ids=[device.index] if device.type == "cuda" else None)


def to_the_gpu(rank, world_size, device):
    batches = shuffled().split(64 // world_size * world_size)[:-1]
    model = wrapped(network(rank, device), device)
    trained, losses = train(model, on_my_shard, batches, device)

    expected, _ = train(network(0, device), batch_loss, batches, device)
    check_training(trained, expected, "DDP on any device")
    return {"loss": losses, "device": str(device)}


# %% [markdown]
# **Predict first.** Two machines have four GPUs each, and torchrun starts four processes on each of
# them. Which GPU must rank 6 take? Write its number down.

# %%
if __name__ == "__main__":
    run(to_the_gpu)

# %% [markdown]
# <details><summary>Answer</summary>
#
# GPU 2: rank 6 is the third process of the second machine, so its local rank is 2. There is no GPU
# 6 on its machine. Here every rank is on the CPU, and the losses are those of the lesson
# [ddp](../../notebooks/training/ddp.ipynb).
#
# </details>

# %% [markdown]
# ### bfloat16
#
# Autocast computes the matrix products in bfloat16, which has 8 bits of precision instead of 24,
# and leaves the parameters in float32. Put forward and loss under it, and not `backward()`. A
# communication hook notes in which type the gradients are reduced, and we compare with one process
# in float64.


# %%
def bfloat16_autocast(rank, world_size, device):
    def note_and_average(found, bucket):
        found.append(f"{bucket.buffer().dtype}, {bucket.buffer().nbytes} bytes")
        work = dist.all_reduce(bucket.buffer() / world_size, async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    batches = shuffled().split(64 // world_size * world_size)[:-1]
    (exact, _), _ = train(network(0, device), batch_loss, batches, device)
    exact, reduced = parameters_to_vector(exact.parameters()), {}
    for autocast, limit in ((False, 1e-6), (True, 1e-1)):
        model = wrapped(network(0, device).float(), device)
        model.register_comm_hook(found := [], note_and_average)
        train(model, partial(on_my_shard, autocast=autocast), batches, device)
        error = (parameters_to_vector(model.parameters()) - exact).norm() / exact.norm()
        check(bool(limit / 100 < error < limit), True, f"error with autocast={autocast}")
        reduced[f"autocast={autocast}"] = f"{found[-1]}, error < {limit}"
    return reduced


# %% [markdown]
# **Predict first.** Under autocast, how many bytes do the 2,410 gradients have that each rank
# reduces? Write the number down.

# %%
if __name__ == "__main__":
    run(bfloat16_autocast)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 9,640, in float32 as without autocast: a gradient has the type of its parameter. So the sum over
# the ranks loses nothing, and the communication is no cheaper. The error comes from the products.
# It is between 1e-3 and 1e-1 after 28 steps, and that of float32 between 1e-8 and 1e-6.
#
# </details>

# %%
STEPS = [to_the_gpu, bfloat16_autocast]

# %% [markdown]
# ## The proof
#
# The five changes may change nothing in float64: `check_training` compares with one process. With
# less precision that proof cannot hold. So prove a program in float64 first, on the CPU, and then
# change the types. For them, `check` compares the error with limits on both sides.

# %% [markdown]
# ## Make it wrong
#
# Each of these is one change. Make it, run the steps, read what the proof says, and undo it.
#
# 1. **The model is not wrapped.** In `wrapped`, change `return DDP(model, device_ids=[device.index]
#    if device.type == "cuda" else None)` to `return model`. It says `rank 2/4:
#    2.bias.momentum_buffer: relative error 3`.
# 2. **Every rank takes the same shard.** In `on_my_shard`, change `images[rank::n],
#    labels[rank::n]` to `images[::n], labels[::n]`. It says `rank 0/4: 2.bias.momentum_buffer:
#    relative error 2`.
# 3. **float32 from the beginning.** In `to_the_gpu`, change `wrapped(network(rank, device),
#    device)` to `wrapped(network(rank, device).float(), device)`. It says `rank 0/4:
#    2.weight.momentum_buffer: relative error inf`. Other types are never equal.
# 4. **A hook that does not divide.** In `bfloat16_autocast`, change `bucket.buffer() / world_size,`
#    to `bucket.buffer(),`. It says `got False, should be True [error with autocast=False`.

# %% [markdown]
# ## Pitfalls
#
# - `set_device(rank)` fails on the second machine: take the local rank. Set it before the first
#   collective, else the communicator may be made on the wrong GPU (documented).
# - NCCL takes tensors on GPUs only (documented). For objects and strings, or for tensors on the
#   CPU, make a second group with gloo.
# - `float16` needs a GradScaler, because its range is small; bfloat16 has the range of float32 and
#   needs none (documented).
# - CUDA runs kernels behind the back of Python: call `torch.cuda.synchronize()` before you read a
#   clock (documented). `loss.item()` waits in each step; print it less often.
# - Load a checkpoint with `map_location=device`. Otherwise every process loads it on the GPU that
#   saved it (documented).
# - In float32, CUDA may use TF32 or add in another order from run to run (documented). The bits of
#   two devices differ, even if both are right.

# %% [markdown]
# ## Write it yourself
#
# Train a model whose parameters are bfloat16, without autocast. Show in which type and with how
# many bytes the gradients are reduced, and that the error is larger than under autocast.
#
# <details><summary>Answer</summary>
#
# ```python
# def bfloat16_parameters(rank, world_size, device):
#     def note_and_average(found, bucket):
#         found.append(f"{bucket.buffer().dtype}, {bucket.buffer().nbytes} bytes")
#         work = dist.all_reduce(bucket.buffer() / world_size, async_op=True)
#         return work.get_future().then(lambda future: future.value()[0])
#
#     batches = shuffled().split(64)[:-1]
#     (exact, _), _ = train(network(0, device), batch_loss, batches, device)
#     exact = parameters_to_vector(exact.parameters())
#     model = wrapped(network(0, device).bfloat16(), device)
#     model.register_comm_hook(found := [], note_and_average)
#     train(model, on_my_shard, batches, device)
#     error = (parameters_to_vector(model.parameters()) - exact).norm() / exact.norm()
#     check(bool(1e-2 < error < 1e-1), True, "bfloat16 parameters")
#     return {"reduced": found[-1], "error": "1e-2 to 1e-1"}
# ```
#
# ```text
# bfloat16_parameters: proved on all 4 ranks
#   rank  reduced                     error
#   0     torch.bfloat16, 4820 bytes  1e-2 to 1e-1
#   1     torch.bfloat16, 4820 bytes  1e-2 to 1e-1
#   2     torch.bfloat16, 4820 bytes  1e-2 to 1e-1
#   3     torch.bfloat16, 4820 bytes  1e-2 to 1e-1
# ```
#
# Half the bytes. But a small step of the optimizer is lost if the parameter is large.
#
# </details>

# %% [markdown]
# ## Read on
#
# - [CUDA semantics](https://docs.pytorch.org/docs/stable/notes/cuda.html) (documented): streams,
#   pinned memory, TF32.
# - [Automatic mixed precision](https://docs.pytorch.org/docs/stable/amp.html), in PyTorch's
#   documentation.
#
# In PyTorch's documentation:
#
# - [`all_reduce`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_reduce)
# - [`get_rank`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.get_rank)
# - [`get_world_size`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.get_world_size)
#
# Next lesson: [ring](../../notebooks/algorithms/ring.ipynb), what is inside an `all_reduce`.
