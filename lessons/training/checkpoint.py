# %% [markdown]
"""
# checkpoint: resume with the same bits, after any batch

A training that stops in the middle of an epoch continues from a file, and ends bit for bit with the
model of a training that never stopped.

You know who writes and who decides from
[save_and_resume](../../notebooks/route/save_and_resume.ipynb). This second reading stops in the
middle of an epoch, and notices a damaged file.

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
# | the position in the data | the number of steps |
# | the random numbers, for dropout | `torch.get_rng_state()`, `torch.cuda.get_rng_state_all()` |
#
# All but the last are equal on all ranks (but see
# [buffers](../../notebooks/training/buffers.ipynb)). So rank 0 writes a draft, with the random
# states of every rank, waits until the disk has it (`fsync`), reads it again, and only then renames
# it.

# %% [markdown]
# ## The code
#
# `train` loads the newest checkpoint of a folder, skips the batches that are done, and saves after
# every fifth step.


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
# In the zip archive of `torch.save` each tensor has a checksum, which Python's `testzip` looks at,
# and `torch.load` does not. So rank 0 broadcasts the newest checkpoint that is whole.


# %%
def is_whole(file):
    return zipfile.is_zipfile(file) and zipfile.ZipFile(file).testzip() is None


def save(folder, step, model, *others):
    mine = torch.get_rng_state(), torch.cuda.get_rng_state_all()  # the second is [] without a GPU
    dist.all_gather_object(generators := [None] * dist.get_world_size(), mine)
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
        of_cpu, of_gpus = state["generators"][dist.get_rank()]
        torch.set_rng_state(of_cpu)
        torch.cuda.set_rng_state_all(of_gpus)
    elif dist.get_rank() == 0:
        print("from another number of ranks: the bits will differ.", file=sys.stderr)
    return state["step"]


# %% [markdown]
# ### Stop and continue
#
# The first training gets only 12 of the 28 batches. The second one starts with other parameters and
# continues from its folder. It must end with the bits of an undisturbed one.

# %% [markdown]
# **Predict first.** Every fifth step is saved, and the first training stops after step 12. How many
# of the 28 steps does the second training make?


# %%
def checkpoint(rank, world_size, device):
    batches = shuffled().split(64 // world_size * world_size)[:-1]
    for dropout in (0.5, 0.0):
        first, second, undisturbed = (network(seed, device, dropout) for seed in (0, 1, 0))
        with TemporaryDirectory() as folder:  # every rank makes one, rank 0 uses its own
            _, before = train(first, on_my_shard, batches[:12], device, folder)
            continued, losses = train(second, on_my_shard, batches, device, folder)
            check(len(os.listdir(folder)), 0 if rank else len(batches) // 5, "one rank writes")
        expected, _ = train(undisturbed, on_my_shard, batches, device)
        check_training(continued, expected, f"dropout {dropout}", limit=0.0)  # bit for bit

    # With dropout one process draws other numbers, so we compare it without.
    expected, _ = train(network(0, device), batch_loss, batches, device)
    check_training(continued, expected, "one process")
    check(len(losses.values), len(batches) - 12 // 5 * 5, "steps after the last one that was saved")
    marks = {losses.done: "the newest checkpoint", len(before.values): "the training stops"}
    both = Curve(before.values[: losses.done] + losses.values, marks=marks)
    return {"loss": both, "steps": len(losses.values)}


# %%
if __name__ == "__main__":
    run(checkpoint, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 18. The newest checkpoint is that of the tenth step, after which 28 - 10 = 18 steps are left.
#
# </details>

# %% [markdown]
# ### A damaged file
#
# A disk can return a wrong bit. Here rank 0 changes one in the checkpoint of step 10.

# %% [markdown]
# **Predict first.** The training has saved the steps 5 and 10. How many of the 28 steps does the
# second training make now?


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
            torch.load(newest, map_location="cpu")  # raises no error
        continued, losses = train(network(1, device), on_my_shard, batches, device, folder)
    expected, _ = train(network(0, device), on_my_shard, batches, device)
    check_training(continued, expected, "after a damage", limit=0.0)
    check(len(losses.values), len(batches) - 5, "steps after step 5")
    return {"steps": len(losses.values)}


# %%
if __name__ == "__main__":
    run(damaged_file, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 23, because `is_whole` notices the bit, so the training continues after step 5.
#
# </details>

# %%
STEPS = [checkpoint, damaged_file]

# %% [markdown]
# ## The proof
#
# `limit=0.0` demands the same bits. Nothing proves that `fsync` or the draft is needed: no test
# cuts the power, and `load` would pass over half a file anyway.

# %% [markdown]
# ## Make it wrong
#
# Make one change, run the steps, read what the proof says, and undo it.
#
# 1. **All ranks take the random numbers of rank 0.** In `load`, change `[dist.get_rank()]` to
#    `[0]`. It says `[dropout 0.5]`: the other ranks drop other units.

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
# - It is not enough that rank 0 loads, as some pages say: DDP broadcasts the parameters and
#   buffers, but neither the momentum nor the step. So every rank loads.
# - Load before you wrap the model in DDP, which then broadcasts what was loaded.
# - Keep two checkpoints, because the newest may be damaged.
# - If each rank holds a part of the model, use `torch.distributed.checkpoint`.

# %% [markdown]
# ## Read on
#
# - In the program to take home, [`save`](../../examples/train_ddp.py) has it:
#   `draft.replace(file)`.
# - There each rank reads the file, and all refuse to continue if they found different steps:
#   [`load`](../../examples/train_ddp.py) has it: `dist.all_gather_object(rows,`.
#
# You must still start the training again yourself. Next lesson:
# [failover](../../notebooks/training/failover.ipynb), where torchrun does it.
