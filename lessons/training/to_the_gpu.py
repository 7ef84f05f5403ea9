# %% [markdown]
"""
# to_the_gpu: from the CPU to one GPU for each rank

Five changes take a training from the CPU to GPUs, and one file can hold both.

Your program trains correctly on the CPU, and tomorrow you get a machine with eight GPUs. You would
like to know before the first expensive hour that your changes broke nothing. At the end of this
lesson you can make them, prove on the CPU that the model is the same, and say what bfloat16
autocast makes smaller.

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
# The calls of torch.distributed are the same on the CPU and on the GPU. What changes is where the
# tensors lie and who carries them.
#
# | | on the CPU | on the GPU |
# |---|---|---|
# | 1. device | `torch.device("cpu")` | `torch.cuda.set_device(local_rank)` |
# | 2. backend | `init_process_group("gloo")` | `init_process_group("nccl")` |
# | 3. model | `DDP(model)` | `DDP(model.to(device), device_ids=[device.index])` |
# | 4. data | as they are | `DataLoader(..., pin_memory=True)`, `.to(device, non_blocking=True)` |
# | 5. types | float64, for the proof | float32 parameters, `torch.autocast(..., torch.bfloat16)` |
#
# [wrapped_in_ddp](../../notebooks/route/wrapped_in_ddp.ipynb) makes the first three of these
# changes. `local_rank` is the number that torchrun puts into `LOCAL_RANK`.
#
# We have run this lesson on the CPU only. What it says about GPUs is documented.

# %% [markdown]
# ## One file for both
#
# `run` makes changes 1 and 2: it chooses the backend, sets the device and hands it to the step. The
# code below makes changes 3 and 4. Both ask for the device, so on the CPU nothing is pinned, and
# `device_ids` is None.


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
# On every rank this is the model of one process. Run the same file where the GPUs are, and the same
# proof runs on them. What is left is change 5, which this proof cannot follow: the types.

# %% [markdown]
# ### What bfloat16 makes smaller
#
# Under autocast the matrix products are computed in bfloat16, which needs half the bytes and has 8
# bits of precision in place of 24. Put the forward pass and the loss under it, but not
# `backward()`. Or convert the parameters themselves: `model.to(torch.bfloat16)`.
#
# To compare both with float32, hooks note the bytes of the outputs of all layers and of the
# gradients that DDP reduces.

# %% [markdown]
# **Predict first.** Of the parameters, the outputs and the reduced gradients: which are half as
# large under autocast as in float32?


# %%
def note_and_average(found, bucket):
    found.append(bucket.buffer().nbytes)
    work = dist.all_reduce(bucket.buffer() / dist.get_world_size(), async_op=True)
    return work.get_future().then(lambda future: future.value()[0])


def error_and_bytes(model, device, autocast=False):
    """How far the trained parameters are from those in float64, what a step held, and the types of
    the outputs.
    """
    n = dist.get_world_size()
    batches = shuffled().split(64 // n * n)[:-1]
    (exact, _), _ = train(network(0, device), batch_loss, batches, device)
    exact = parameters_to_vector(exact.parameters())
    outputs, reduced, types = [], [], set()
    for layer in model:
        layer.register_forward_hook(lambda layer, inputs, output: outputs.append(output.nbytes))
        layer.register_forward_hook(lambda layer, inputs, output: types.add(output.dtype))
    model = wrapped(model, device)
    model.register_comm_hook(reduced, note_and_average)
    train(model, partial(on_my_shard, autocast=autocast), batches, device)
    found = parameters_to_vector(model.parameters())
    step = {
        "parameters": found.nbytes,
        "outputs": sum(outputs) // len(batches),
        "gradients": sum(reduced) // len(batches),
    }
    return (found - exact).norm() / exact.norm(), step, types


def mixed_precision(rank, world_size, device):
    limits, errors, bars = {}, [], {}
    outputs = 64 // world_size * (32 + 32 + 10)  # numbers: two layers with 32, one with 10
    for name, dtype, autocast, sizes, limit in (
        ("float32", torch.float32, False, (4, 4, 4), 1e-6),
        ("autocast", torch.float32, True, (4, 2, 4), 1e-1),
        ("bfloat16", torch.bfloat16, False, (2, 2, 2), 1e-1),
    ):
        model = network(0, device).to(dtype)
        error, bars[name], types = error_and_bytes(model, device, autocast)
        errors.append(error.item())
        check(types, {torch.bfloat16 if autocast else dtype}, f"types of the outputs, {name}")
        check(bool(limit / 100 < error < limit), True, f"error, {name}")
        numbers = 2410, outputs, 2410
        expected = [count * size for count, size in zip(numbers, sizes, strict=True)]
        check(list(bars[name].values()), expected, f"bytes, {name}")
        limits[f"error, {name}"] = f"< {limit}"
    check(errors, sorted(errors), "errors")
    return limits | {"bytes": MemoryBars(bars)}


# %%
if __name__ == "__main__":
    run(mixed_precision, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Only the outputs. The parameters stay in float32, and a gradient has the type of its parameter, so
# each rank still reduces 2,410 * 4 = 9,640 bytes. The communication is no cheaper, and the sum over
# the ranks loses nothing: the error comes from the products.
#
# With parameters in bfloat16 everything is half as large, but the error is the largest of the
# three, because a small step is lost when it is added to a large parameter.
#
# </details>

# %%
STEPS = [to_the_gpu, mixed_precision]

# %% [markdown]
# ## The proof
#
# In float64 the changes may change nothing, so `check_training` compares with one process. With
# less precision that cannot hold, so prove a program in float64 first, and then change its types.
# For each type `check` compares the bytes with a formula, and the error with limits on both sides.
# It does not see whether `backward()` ran under autocast.

# %% [markdown]
# ## On GPUs
#
# - Call `set_device` before the first collective (`torch/distributed/distributed_c10d.py`: "If user
#   did not set any, this may use default device 0, causing issues like hang or all processes
#   creating context on device 0").
# - DDP takes `output_device`, too. Leave it out (`torch/nn/parallel/distributed.py`: "default:
#   ``device_ids[0]`` for single-device modules").
# - Pin the memory, or the copies wait (`torch/_tensor_docs.py`: "If ``True`` and the source is in
#   pinned memory, the copy will be asynchronous with respect to the host").
# - float16 needs a [GradScaler](https://docs.pytorch.org/docs/stable/amp.html#gradient-scaling),
#   because its range is small. bfloat16 has the range of float32 and needs none.
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
# - NCCL accepts [tensors on GPUs
#   only](https://docs.pytorch.org/docs/stable/distributed.html#backends). For tensors on the CPU,
#   too, start with `init_process_group("cpu:gloo,cuda:nccl")`.
# - `loss.item()` waits until the GPU has finished, so don't print the loss in each step.
# - `CUDA_VISIBLE_DEVICES=2,3 torchrun --nproc-per-node 2 train.py` shows the job [only these two
#   GPUs](https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/environment-variables.html),
#   which its ranks count as 0 and 1. That is how two jobs share a machine.
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
#
# The options `--pin`, `--bf16` and `--clip` of [train_ddp.py](../../examples/train_ddp.py) bring
# pinned memory, autocast and clipping.
#
# You now know how to use `all_reduce`, but not how it works. Next lesson:
# [ring](../../notebooks/algorithms/ring.ipynb), what is inside it.
