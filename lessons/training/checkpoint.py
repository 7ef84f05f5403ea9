# %% [markdown]
"""
# checkpoint

A training that stops in the middle of an epoch continues from a file, and ends with the bits of a
training that never stopped.

You will see what the file must hold, how it is written so that a crash cannot spoil it, and how a
file that is damaged or of another model is noticed.

    python lessons/training/checkpoint.py
    torchrun --nproc-per-node 4 lessons/training/checkpoint.py
"""

# %%
import io
import os
import sys
import zipfile
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from collectives import check_training
from collectives.lesson import Curve, digits, run
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

# %% [markdown]
# ## The idea
#
# The next step of a training depends on everything that the steps before have changed:
#
# | what | where it is |
# |---|---|
# | the parameters and buffers | `model.state_dict()` |
# | the momentum, or the averages of Adam | `optimizer.state_dict()` |
# | the position in the data | the number of steps; the seed gives the order of the images |
# | the random numbers, for dropout | `torch.get_rng_state()`, which differs from rank to rank |
#
# The first three are equal on all ranks, so one rank writes the file, with the random states of
# all. A crash may come while it writes, and half a file is useless: it must not replace the older
# one. So rank 0 writes a draft, asks the system to bring it to the disk (`fsync`), reads it again,
# and only then gives it its name.

# %% [markdown]
# ## The code
#
# This is the program of [seeds](../../notebooks/training/seeds.ipynb), with a choice of dropout.
# Each rank divides its loss by n, and `all_reduce` adds. What is new is the `folder`: `train` loads
# what is there, skips the batches that are done, and saves after every fifth step.


# %%
def network(seed, device, dropout=0.0):
    torch.manual_seed(seed)
    layers = [nn.Linear(64, 32), nn.ReLU(), nn.Dropout(dropout), nn.Linear(32, 10)]
    return nn.Sequential(*layers).double().to(device)


def shuffled():
    return torch.randperm(1797, generator=torch.Generator().manual_seed(0))


def train(model, backward, batches, device, folder=None):
    torch.set_num_threads(1)  # the ranks of one machine share its cores
    torch.manual_seed(dist.get_rank())
    images, labels = digits(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    done = load(folder, model, optimizer) if folder else 0
    losses = []
    for step, batch in enumerate(batches[done:], done + 1):
        optimizer.zero_grad()
        losses.append(backward(model, images[batch], labels[batch]))
        optimizer.step()
        if folder and step % 5 == 0:
            save(folder, step, model, optimizer)
    return (model, optimizer), Curve(losses, done=done)


def shard_loss(model, images, labels, rank=0, n=1):
    loss = cross_entropy(model(images[rank::n]), labels[rank::n])
    (loss / n).backward()
    return loss.item()


def on_my_shard(model, images, labels):
    loss = shard_loss(model, images, labels, dist.get_rank(), dist.get_world_size())
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    return loss


# %% [markdown]
# ### Save
#
# `torch.save` writes a zip archive, which has a check sum for each tensor. `torch.load` does not
# look at them, and `testzip` does. `fits` notes what must be the same when the file is loaded: the
# format, the number of ranks, and the shape of each parameter.


# %%
def fits(model):
    shapes = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    return {"format": 1, "ranks": dist.get_world_size()} | shapes


def is_whole(file):
    with suppress(zipfile.BadZipFile):
        return zipfile.ZipFile(file).testzip() is None


def save(folder, step, model, optimizer):
    dist.all_gather_object(generators := [None] * dist.get_world_size(), torch.get_rng_state())
    if dist.get_rank() > 0:
        return  # one rank writes
    state = {"fits": fits(model), "step": step, "generators": generators}
    state |= {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    draft = Path(folder, "draft")
    torch.save(state, buffer := io.BytesIO())
    with draft.open("wb") as file:
        file.write(buffer.getbuffer())
        file.flush()
        os.fsync(file.fileno())  # wait until the disk has it
    if not is_whole(draft):
        raise OSError(f"{draft} is damaged: the checkpoint of step {step} is not saved")
    draft.replace(Path(folder, f"step-{step:04}.pt"))  # all of it or nothing


# %% [markdown]
# ### Load
#
# Rank 0 takes the newest checkpoint that is whole and broadcasts it, so that all ranks continue
# from the same step. The other ranks need no access to the folder.


# %%
def load(folder, model, optimizer):
    files = sorted(Path(folder).glob("step-*.pt"), reverse=True) if dist.get_rank() == 0 else []
    newest = next(filter(is_whole, files), None)
    if files and newest != files[0]:
        print(f"{files[0]} is damaged: continuing from {newest or 'step 0'}.", file=sys.stderr)
    found = [torch.load(newest, map_location="cpu") if newest else None]
    dist.broadcast_object_list(found, src=0)
    if (state := found[0]) is None:
        return 0  # the training begins
    here, there = fits(model), state["fits"]
    if wrong := [key for key in here | there if here.get(key) != there.get(key)]:
        found = f"{wrong[0]} is {there.get(wrong[0])} there and {here.get(wrong[0])} here"
        raise ValueError(f"the checkpoint does not fit: {found}. Use another folder.")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["generators"][dist.get_rank()])
    return state["step"]


# %% [markdown]
# If the newest file is damaged, rank 0 says so, and the training continues from the file before:
# some more steps are made again, and nothing else is lost. If it belongs to another model, to
# another number of ranks or to another version of the program, so do the older ones. Then every
# rank raises an error that says what differs:
#
# ```text
# ValueError: the checkpoint does not fit: 0.bias is [64] there and [32] here. Use another folder.
# ```

# %% [markdown]
# ### Stop and continue
#
# The first training gets only 12 of the 28 batches, so it stops after 12 steps. The second one
# starts as a new process would, with other parameters and a new optimizer. It finds the folder.


# %%
def stop_and_continue(batches, device, dropout=0.0):
    with TemporaryDirectory() as folder:  # every rank makes one, rank 0 uses its own
        train(network(0, device, dropout), on_my_shard, batches[:12], device, folder)
        return train(network(1, device, dropout), on_my_shard, batches, device, folder)


def checkpoint(rank, world_size, device):
    batches = shuffled().split(64 // world_size * world_size)[:-1]
    continued, losses = stop_and_continue(batches, device)

    undisturbed, _ = train(network(0, device), on_my_shard, batches, device)
    expected, _ = train(network(0, device), shard_loss, batches, device)
    check_training(continued, undisturbed, "continued", limit=0.0)  # bit for bit
    check_training(continued, expected, "one process")
    return {"loss": losses, "steps": len(losses.values)}


# %% [markdown]
# **Predict first.** An epoch has 28 steps here. The first training makes 12 of them. How many steps
# does the second one make? Write the number down.

# %%
if __name__ == "__main__":
    run(checkpoint)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 18: it continues from step 10, which is the last one that was saved, and makes the steps 11 and 12
# again. Nothing else is lost. The picture shows the losses of the steps 11 to 28.
#
# </details>

# %% [markdown]
# ### Dropout
#
# With dropout, the random numbers count, too. The result is no longer that of one process, which
# draws other numbers. It must still be that of the undisturbed training.


# %%
def continued_dropout(rank, world_size, device):
    batches = shuffled().split(64 // world_size * world_size)[:-1]
    continued, losses = stop_and_continue(batches, device, dropout=0.5)

    undisturbed, _ = train(network(0, device, dropout=0.5), on_my_shard, batches, device)
    check_training(continued, undisturbed, "continued with dropout", limit=0.0)
    return {"loss": losses, "bytes of a generator": torch.get_rng_state().nbytes}


# %% [markdown]
# **Predict first.** The 2,410 parameters have 19,280 bytes. How many bytes do the states of the
# four generators add to the file? Write the number down.

# %%
if __name__ == "__main__":
    run(continued_dropout)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 20,224: four times the 5,056 bytes that the table shows, and more than the parameters have. In a
# model of ordinary size nobody notices them. If only rank 0 saved its state, all ranks would drop
# the same units after the restart. There would be no error, but another model.
#
# </details>

# %%
STEPS = [checkpoint, continued_dropout]

# %% [markdown]
# ## The proof
#
# `check_training` with `limit=0.0` demands the same bits in every parameter and in the momentum.
# The tests damage the newest file in five ways: it is cut off, it is empty, one bit is wrong, rank
# 0 is killed while it writes, and the disk is full. Each time the training continues from the older
# file and ends with the same bits.

# %% [markdown]
# ## Make it wrong
#
# Each of these is one change. Make it, run the steps, read what the proof says, and undo it.
#
# 1. **The optimizer is forgotten.** In `load`, change
#    `optimizer.load_state_dict(state["optimizer"])` to `pass`. It says `rank 0/4:
#    0.bias.momentum_buffer: relative error 0.4`.
# 2. **The epoch begins again.** In `load`, change `return state["step"]` to `return 0`. It says
#    `rank 0/4: 0.bias.momentum_buffer: relative error 0.7`.
# 3. **The step is one off.** In `load`, change `return state["step"]` to `return state["step"] +
#    1`. It says `rank 0/4: 3.bias.momentum_buffer: relative error 0.1`.
# 4. **The random numbers are forgotten.** In `load`, change
#    `torch.set_rng_state(state["generators"][dist.get_rank()])` to `pass`. It says `[continued with
#    dropout]`.
# 5. **All ranks take the random numbers of rank 0.** In `load`, change `[dist.get_rank()])` to
#    `[0])`. It says `[continued with dropout]`.
# 6. **Only rank 0 loads.** In `load`, change `model.load_state_dict(state["model"])` to
#    `dist.get_rank() or model.load_state_dict(state["model"])`. It says `rank 1/4: 0.bias: relative
#    error 1`.

# %% [markdown]
# ## Pitfalls
#
# - Load before you wrap the model in DDP, which then broadcasts what was loaded. Save
#   `model.module.state_dict()`: without `module.`, the names also fit the bare model.
# - DDP itself does not continue bit for bit. After the first step it builds its buckets again, and
#   then it adds in another order. The difference is a rounding error.
# - Write on rank 0, not on local rank 0: every machine has a local rank 0.
# - Delete an old checkpoint only when a newer one has its name, and keep two.
# - `torch.load` reads a file with a wrong bit without an error.
# - This is for models that fit into the memory of one rank. If each rank holds a part of the model,
#   use `torch.distributed.checkpoint`, in which every rank writes its part.
# - The workers of a DataLoader draw random numbers, too
#   ([seeds](../../notebooks/training/seeds.ipynb)).

# %% [markdown]
# ## Write it yourself
#
# Many programs save the weights alone. Continue after 10 steps with the same model and a new
# optimizer. How far are the parameters from those of the undisturbed training?
# `collectives.spec.check_training.relative_errors` gives the error of each tensor.
#
# <details><summary>Answer</summary>
#
# ```python
# from collectives.spec.check_training import relative_errors
#
#
# def weights_alone(rank, world_size, device):
#     batches = shuffled().split(60)[:-1]
#     (model, _), _ = train(network(0, device), on_my_shard, batches[:10], device)
#     continued, _ = train(model, on_my_shard, batches[10:], device)
#     undisturbed, _ = train(network(0, device), on_my_shard, batches, device)
#     errors = relative_errors(continued, undisturbed)
#     return {name: f"{errors[name]:.1%}" for name, _ in model.named_parameters()}
# ```
#
# ```text
# weights_alone: proved on all 4 ranks
#   rank  0.weight  0.bias  3.weight  3.bias
#   0     16.6%     22.1%   17.0%     23.3%
#   1     16.6%     22.1%   17.0%     23.3%
#   2     16.6%     22.1%   17.0%     23.3%
#   3     16.6%     22.1%   17.0%     23.3%
# ```
#
# The momentum is missing for only a few steps, but the training has gone elsewhere. The loss does
# not show it.
#
# </details>

# %% [markdown]
# ## Read on
#
# - [Saving and loading
#   models](https://docs.pytorch.org/tutorials/beginner/saving_loading_models.html) and
#   [torch.distributed.checkpoint](https://docs.pytorch.org/docs/stable/distributed.checkpoint.html),
#   in PyTorch's documentation.
# - T. S. Pillai and others, *All File Systems Are Not Created Equal* (OSDI 2014): why a file is
#   synced before it is renamed.
#
# In PyTorch's documentation:
#
# - [`all_gather_object`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_gather_object)
# - [`all_reduce`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_reduce)
# - [`broadcast_object_list`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.broadcast_object_list)
# - [`get_rank`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.get_rank)
# - [`get_world_size`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.get_world_size)
#
# Next lesson: [failover](../../notebooks/training/failover.ipynb), where ranks are killed and
# started again.
