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

from collectives import check, check_samples, check_training, digits, note_samples, run
from collectives.pictures.memory_bars import MemoryBars
from one_process import network, shuffled
import torch
import torch.distributed as dist
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
# rank is the number among all machines. If two machines have four GPUs each, rank 6 has local rank
# 2, and there is no GPU 6.

# %% [markdown]
# ## The code
#
# `run` makes changes 1 and 2: it chooses the backend, sets the device, and hands it to the step. On
# the CPU, `non_blocking=True` changes nothing.


# %%
def train(model, backward, batches, device):
    torch.set_num_threads(1)  # the ranks of one machine share its cores
    pin = device.type == "cuda"
    loader = DataLoader(TensorDataset(*digits()), batch_sampler=batches, pin_memory=pin)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    note_samples(model, optimizer)
    losses = []
    for images, labels in loader:
        images = images.to(device, next(model.parameters()).dtype, non_blocking=True)
        optimizer.zero_grad()
        losses.append(backward(model, images, labels.to(device, non_blocking=True)))
        optimizer.step()
    return (model, optimizer), losses


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
    check_samples(trained, expected, "DDP on any device")
    return {"last loss": losses[-1], "device": str(device)}


# %%
if __name__ == "__main__":
    run(to_the_gpu)

# %% [markdown]
# This is the model of one process, in float64. On the CPU there is no GPU to choose, `device_ids`
# is None, and nothing is pinned.

# %% [markdown]
# ### bfloat16
#
# Autocast computes the matrix products in bfloat16, which has 8 bits of precision instead of 24,
# and leaves the parameters in float32. Put forward and loss under it, and not `backward()`. Without
# autocast, the parameters themselves can be bfloat16. A communication hook notes in which type the
# gradients are reduced, and we compare with one process in float64.

# %% [markdown]
# **Predict first.** Are the gradients that each rank reduces half as many bytes under autocast?


# %%
def note_and_average(found, bucket):
    found.append(f"{bucket.buffer().dtype}, {bucket.buffer().nbytes} bytes")
    work = dist.all_reduce(bucket.buffer() / dist.get_world_size(), async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


def error_and_gradients(model, device, autocast=False):
    """How far the trained parameters are from those in float64, and what the ranks reduced."""
    n = dist.get_world_size()
    batches = shuffled().split(64 // n * n)[:-1]
    (exact, _), _ = train(network(0, device), batch_loss, batches, device)
    exact = parameters_to_vector(exact.parameters())
    model = wrapped(model, device)
    model.register_comm_hook(found := [], note_and_average)
    train(model, partial(on_my_shard, autocast=autocast), batches, device)
    error = (parameters_to_vector(model.parameters()) - exact).norm() / exact.norm()
    return error, found


def types_of_gradients(rank, world_size, device):
    limits, errors, bars = {}, [], {}
    for name, dtype, autocast, limit in (
        ("float32", torch.float32, False, 1e-6),
        ("autocast", torch.float32, True, 1e-1),
        ("bfloat16", torch.bfloat16, False, 1e-1),
    ):
        error, found = error_and_gradients(network(0, device).to(dtype), device, autocast)
        errors.append(error.item())
        check(bool(limit / 100 < error < limit), True, f"error, {name}")
        size = 2410 * dtype.itemsize
        check({*found}, {f"{dtype}, {size} bytes"}, f"gradients, {name}")
        limits[f"error, {name}"] = f"< {limit}"
        bars[name] = {"gradients": size}
    check(errors, sorted(errors), "errors")
    return limits | {"bytes": MemoryBars(bars)}


# %%
if __name__ == "__main__":
    run(types_of_gradients)

# %% [markdown]
# <details><summary>Answer</summary>
#
# No: 9,640 bytes, in float32 as without autocast: a gradient has the type of its parameter. So the
# sum over the ranks loses nothing, and the communication is no cheaper. The error comes from the
# products. With parameters in bfloat16 there are 4,820 bytes, but the error is larger: a small step
# of the optimizer is lost if the parameter is large.
#
# </details>

# %%
STEPS = [to_the_gpu, types_of_gradients]

# %% [markdown]
# ## The proof
#
# The five changes may change nothing in float64: `check_training` compares with one process. With
# less precision that proof cannot hold. So prove a program in float64 first, on the CPU, and then
# change the types. For them, `check` compares the error with limits on both sides. It does not see
# whether `backward()` ran under autocast, too.

# %% [markdown]
# ## On GPUs
#
# - Call `set_device` before the first collective (`torch/distributed/distributed_c10d.py`: "If user
#   did not set any, this may use default device 0, causing issues like hang or all processes
#   creating context on device 0").
# - Pin the memory, or the copies wait (`torch/_tensor_docs.py`: "If ``True`` and the source is in
#   pinned memory, the copy will be asynchronous with respect to the host").
# - float16 needs a [GradScaler](https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling),
#   because its range is small. bfloat16 has the range of float32 and needs none.
# - Kernels run [behind the back of
#   Python](https://docs.pytorch.org/docs/stable/notes/cuda.html#asynchronous-execution): call
#   `torch.cuda.synchronize()` before you read a clock.
# - Load a checkpoint with `map_location=device` (`torch/serialization.py`: "on a file which
#   contains GPU tensors, those tensors will be loaded to GPU by default").

# %% [markdown]
# ## Make it wrong
#
# Make one change, run the steps, read what the proof says, and undo it.
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
# 4. **A hook that does not divide.** In `note_and_average`, change `bucket.buffer() /
#    dist.get_world_size(),` to `bucket.buffer(),`. It says `got False, should be True [error,
#    float32`.

# %% [markdown]
# ## Pitfalls
#
# - `set_device(rank)` fails on the second machine: take the local rank.
# - NCCL takes tensors on GPUs only: see the table of
#   [backends](https://docs.pytorch.org/docs/stable/distributed.html#backends) in PyTorch's
#   documentation. Objects go through the current GPU
#   (`torch/distributed/distributed_c10d.py`: "internal tensor representations of objects must be
#   moved to the GPU device before communication takes place"). For tensors on the CPU, too, start
#   with `init_process_group("cpu:gloo,cuda:nccl")`.
# - `loss.item()` waits for the GPU in each step; print it less often.
# - `CUDA_VISIBLE_DEVICES=2,3 torchrun --nproc-per-node 2 train.py` shows the job [only these two
#   GPUs](https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html),
#   and the ranks count them as 0 and 1. So two jobs can share a machine.
# - NCCL connects the ranks at their first collective, or in `init_process_group` with `device_id`
#   (`torch/distributed/distributed_c10d.py`: "the communicator is immediately formed"). From torch
#   2.15 on, "nccl" is another engine: [Which NCCL?](../../docs/which-nccl.md)

# %% [markdown]
# ## Read on
#
# - In the program to take home,
#   [`start`](../../examples/train_ddp.py) has it:
#   `torch.cuda.set_device(device)`.
# - [CUDA semantics](https://docs.pytorch.org/docs/stable/notes/cuda.html), in PyTorch's
#   documentation: streams, pinned memory, and TF32, which CUDA may use in float32.
# - [Automatic mixed precision](https://docs.pytorch.org/docs/stable/amp.html), there.
#
# Start your own training from [train_ddp.py](../../examples/train_ddp.py), which needs nothing of
# this package. It makes changes 1 and 2, and moves model and data to the device. You add
# `device_ids`, pinned memory and autocast, and from this chapter clipping and token weights.
#
# Next lesson: [ring](../../notebooks/algorithms/ring.ipynb), what is inside an `all_reduce`.
