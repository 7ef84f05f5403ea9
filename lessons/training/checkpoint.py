# %% [markdown]
"""
# checkpoint

A training that stops in the middle of an epoch continues from a file, and ends with the bits of a
training that never stopped.

Your training runs for days, and one night it stops. You have a file with the parameters, but when
you continue from it, the loss jumps, because the parameters are only a part of what a training
knows. At the end of this lesson you can write a file that holds all of it, that a crash cannot
spoil, and whose damage you notice.

    python lessons/training/checkpoint.py
    torchrun --nproc-per-node 4 lessons/training/checkpoint.py
"""

# %%
import io
import os
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory
from collectives import Curve, check, check_training, digits, run
import torch
import torch.distributed as dist
from data_parallel import batch_loss, on_my_shard
from one_process import shuffled
from torch import nn

# %% [markdown]
# ## The idea
#
# The next step of a training depends on everything that the steps before have changed:
#
# | what | where it is |
# |---|---|
# | the parameters and buffers | `model.state_dict()` |
# | the momentum, or the averages of Adam | `optimizer.state_dict()` |
# | the learning rate, if it has a schedule | `schedule.state_dict()` |
# | with float16: the scale of the loss | `scaler.state_dict()` of the `GradScaler` |
# | the position in the data | the number of steps; the seed gives the order of the images |
# | the random numbers, for dropout | `torch.get_rng_state()`, which differs from rank to rank |
#
# All but the last are equal on all ranks, so one rank writes the file, with the random states of
# all. If it is killed while it writes, half a file must not replace the older one. That is why rank
# 0 writes a draft, waits until the disk has it (`fsync`), reads it again, and only then gives it
# its name.

# %% [markdown]
# ## The code
#
# [one_process](../../notebooks/training/one_process.ipynb) shuffles the images, and
# [data_parallel](../../notebooks/training/data_parallel.ipynb) averages the gradients. Here `train`
# loads what is in a folder, skips the batches that are done, and saves after every fifth step.


# %%
def network(seed, device, dropout=0.0):
    torch.manual_seed(seed)
    layers = [nn.Linear(64, 32), nn.ReLU(), nn.Dropout(dropout), nn.Linear(32, 10)]
    return nn.Sequential(*layers).double().to(device)


def train(model, backward, batches, device, folder=None):
    torch.set_num_threads(1)  # the ranks of one machine share its cores
    torch.manual_seed(dist.get_rank())
    images, labels = digits(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=20)
    others = optimizer, schedule
    done = load(folder, model, *others) if folder else 0
    losses = []
    for step, batch in enumerate(batches[done:], done + 1):
        optimizer.zero_grad()
        losses.append(backward(model, images[batch], labels[batch]))
        optimizer.step()
        schedule.step()
        if folder and step % 5 == 0:
            save(folder, step, model, *others)
    return (model, optimizer), Curve(losses, done=done)


# %% [markdown]
# ### Save and load
#
# `torch.save` writes a zip archive with a checksum for each tensor. `torch.load` does not look at
# the checksums, but `testzip` does. So rank 0 can pass over a damaged file, and it broadcasts the
# newest checkpoint that is whole.
#
# On another number of ranks the training continues, too, but not with the same bits, because the
# ranks add in another order, and dropout draws other numbers.


# %%
def is_whole(file):
    return zipfile.is_zipfile(file) and zipfile.ZipFile(file).testzip() is None


def save(folder, step, model, *others):
    dist.all_gather_object(generators := [None] * dist.get_world_size(), torch.get_rng_state())
    if dist.get_rank() > 0:
        return  # one rank writes
    parts = [one.state_dict() for one in (model, *others)]
    state = {"step": step, "generators": generators, "parts": parts}
    draft = Path(folder, "draft")
    torch.save(state, buffer := io.BytesIO())
    with draft.open("wb") as file:
        file.write(buffer.getbuffer())
        file.flush()
        os.fsync(file.fileno())  # wait until the disk has it
    if not is_whole(draft):
        raise OSError(f"{draft} is damaged: the checkpoint of step {step} is not saved")
    draft.replace(Path(folder, f"step-{step:04}.pt"))  # all of it or nothing


def load(folder, model, *others):
    files = sorted(Path(folder).glob("step-*.pt"), reverse=True) if dist.get_rank() == 0 else []
    newest = next(filter(is_whole, files), None)
    if files and newest != files[0]:
        before = newest.name if newest else "step 0"
        print(f"{files[0].name} is damaged: continuing from {before}.", file=sys.stderr)
    found = [torch.load(newest, map_location="cpu") if newest else None]
    dist.broadcast_object_list(found, src=0)
    if (state := found[0]) is None:
        return 0  # the training begins
    for one, kept in zip((model, *others), state["parts"], strict=True):
        one.load_state_dict(kept)
    if len(state["generators"]) == dist.get_world_size():
        torch.set_rng_state(state["generators"][dist.get_rank()])
    elif dist.get_rank() == 0:
        print("from another number of ranks: the bits will differ.", file=sys.stderr)
    return state["step"]


# %% [markdown]
# ### Stop and continue
#
# The first training gets only 12 of the 28 batches. The second one starts as a new process would,
# with other parameters, and finds the folder that the first has left.

# %% [markdown]
# **Predict first.** Every fifth step is saved, and the first training stops after step 12. How many
# of the 28 steps does the second training make?


# %%
def checkpoint(rank, world_size, device):
    batches = shuffled().split(64 // world_size * world_size)[:-1]
    for dropout in (0.5, 0.0):
        first, second, undisturbed = (network(seed, device, dropout) for seed in (0, 1, 0))
        with TemporaryDirectory() as folder:  # every rank makes one, rank 0 uses its own
            train(first, on_my_shard, batches[:12], device, folder)
            continued, losses = train(second, on_my_shard, batches, device, folder)
        expected, _ = train(undisturbed, on_my_shard, batches, device)
        check_training(continued, expected, f"dropout {dropout}", limit=0.0)  # bit for bit

    # With dropout one process draws other numbers, so we compare it without.
    expected, _ = train(network(0, device), batch_loss, batches, device)
    check_training(continued, expected, "one process")
    check(len(losses.values), len(batches) - 12 // 5 * 5, "steps after the last one that was saved")
    return {"loss": losses, "steps": len(losses.values)}


# %%
if __name__ == "__main__":
    run(checkpoint)

# %% [markdown]
# <details><summary>Answer</summary>
#
# It makes 18 steps, so it goes on after step 28 - 18 = 10, the last one that was saved. It makes
# the two steps after it once more, and nothing else is lost.
#
# </details>

# %% [markdown]
# ### A damaged file
#
# A crash is not the only thing that spoils a file. Here rank 0 changes one bit in the middle of the
# newest one, that of step 10.

# %% [markdown]
# **Predict first.** The training has saved the steps 5 and 10. Does `torch.load` notice the bit?


# %%
def damaged_file(rank, world_size, device):
    batches = shuffled().split(64 // world_size * world_size)[:-1]
    with TemporaryDirectory() as folder:
        train(network(0, device), on_my_shard, batches[:12], device, folder)
        newest = Path(folder, "step-0010.pt")
        if rank == 0:
            data = bytearray(newest.read_bytes())
            data[len(data) // 2] ^= 1
            newest.write_bytes(data)
            torch.load(newest)  # raises no error
        continued, losses = train(network(1, device), on_my_shard, batches, device, folder)
    expected, _ = train(network(0, device), on_my_shard, batches, device)
    check_training(continued, expected, "after a damage", limit=0.0)
    check(len(losses.values), len(batches) - 5, "steps after step 5")
    return {"steps": len(losses.values)}


# %%
if __name__ == "__main__":
    run(damaged_file)

# %% [markdown]
# <details><summary>Answer</summary>
#
# No, it raises no error, and you would train on without noticing. But `is_whole` notices: the
# training makes 23 steps, so it goes on after step 28 - 23 = 5, and ends with the same bits.
#
# </details>

# %%
STEPS = [checkpoint, damaged_file]

# %% [markdown]
# ## The proof
#
# `limit=0.0` demands the same bits in every parameter and in the momentum. In the tests the newest
# file is also cut off or empty, rank 0 is killed while it writes, and the disk is full. No test
# cuts the power, so `fsync` is not proved, and neither is the draft, because `load` passes over
# half a file anyway.

# %% [markdown]
# ## Make it wrong
#
# Make one change, run the steps, read what the proof says, and undo it.
#
# 1. **The schedule is forgotten.** In `train`, change `others = optimizer, schedule` to `others =
#    (optimizer,)`. It says `relative error`: the learning rate is another one, without an error.
# 2. **The optimizer is forgotten.** In `train`, change `others = optimizer, schedule` to `others =
#    (schedule,)`. It says `relative error`.
# 3. **All ranks take the random numbers of rank 0.** In `load`, change `[dist.get_rank()])` to
#    `[0])`. It says `[dropout 0.5]`.
# 4. **Only rank 0 loads.** In `load`, change `one.load_state_dict(kept)` to `dist.get_rank() or
#    one.load_state_dict(kept)`. It says `rank 1/4: 3.bias`.

# %% [markdown]
# ## Write it yourself
#
# In your folder of [exercises](../../README.md#exercises):
#
# ```sh
# collectives practice a_checkpoint
# ```

# %% [markdown]
# ## Pitfalls
#
# - Load before you wrap the model in DDP, which then broadcasts what was loaded. Save
#   `model.module.state_dict()`, whose names also fit the bare model.
# - DDP does not continue bit for bit, because it builds its buckets again, and then adds in another
#   order.
# - Write on rank 0, not on local rank 0, because every machine has a local rank 0.
# - Delete an old checkpoint only when a newer one has its name, and keep two.
# - If each rank holds a part of the model, use `torch.distributed.checkpoint`.

# %% [markdown]
# ## Read on
#
# - In the program to take home, [`save`](../../examples/train_ddp.py) has it:
#   `draft.replace(file)`.
# - In the program to take home, [`load`](../../examples/train_ddp.py) has it:
#   `dist.broadcast_object_list(found)`.
#
# Now the training can continue, but you have to start it again yourself. Next lesson:
# [failover](../../notebooks/training/failover.ipynb), where ranks are killed and torchrun starts
# them again.
