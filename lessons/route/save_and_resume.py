# %% [markdown]
"""
# save_and_resume: save a checkpoint on rank 0, and resume on all ranks

One rank writes a checkpoint for all, one rank decides for all whether there is one, and each rank
continues with random numbers of its own.

A long training stops some day. At the end of this lesson the program that measured itself in
[exact_validation](../../notebooks/route/exact_validation.ipynb) continues from its last epoch, and
ends with the bits of a training that never stopped.

    python lessons/route/save_and_resume.py
    torchrun --nproc-per-node 2 examples/route/8_save_and_resume.py
"""

# %%
from pathlib import Path
from tempfile import TemporaryDirectory
from collectives import check, needs, run
from started import started

# %% [markdown]
# ## The idea
#
# The model and the optimizer are equal on all ranks, so one rank can write them for all. Three
# questions remain, and each has a wrong answer that works in the first test:
#
# 1. **Who writes?** Rank 0. If all ranks wrote the same file at the same time, it would be spoilt.
# 2. **Who decides that there is a checkpoint?** Rank 0, for all. If each rank looked for itself,
#    one might see a file that another doesn't. Then one would begin with epoch 2 and the other with
#    epoch 0, and at first they would train together without an error.
# 3. **Whose random numbers?** Each rank needs others, or all would drop the same units. So each
#    rank takes a new seed in each epoch, made of the epoch and its rank, and there is nothing to
#    save.

# %% [markdown]
# ## The difference
#
# This is what [8_save_and_resume.py](../../examples/route/8_save_and_resume.py) has and the program
# before does not:
#
# ```diff
# -EPOCHS, BATCH, PARTS = 3, 120, 4
# +EPOCHS, BATCH, PARTS, DROPOUT = 3, 120, 4, 0.1
#
#  self.register_buffer("mix", torch.randn(64, 64) / 8)  # random, and not trained
# -layers = nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)
# +layers = nn.Linear(64, 32), nn.ReLU(), nn.Dropout(DROPOUT), nn.Linear(32, 10)
#
# +def save(epoch, model, optimizer):
# +    """Rank 0 writes a file for all, which gets its name when all of it is there."""
# +    if dist.get_rank() == 0:
# +        state = {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
# +        torch.save(state, "draft.pt")
# +        Path("draft.pt").replace(f"epoch-{epoch:03}.pt")
# +
# +
# +def load(model, optimizer):
# +    """Rank 0 decides for all from which file they continue. Returns the first epoch to train."""
# +    files = sorted(Path().glob("epoch-*.pt")) if dist.get_rank() == 0 else []
# +    found = [torch.load(files[-1], map_location="cpu") if files else None]
# +    dist.broadcast_object_list(found, src=0)
# +    if (state := found[0]) is None:
# +        return 0
# +    model.load_state_dict(state["model"])
# +    optimizer.load_state_dict(state["optimizer"])
# +    return state["epoch"] + 1
#
#  optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
# -for epoch in range(EPOCHS):
# +for epoch in range(load(model.module, optimizer), EPOCHS):
# +    torch.manual_seed(epoch * n + rank)  # its own dropout on every rank, in every epoch
#
#  print(f"rank {rank}, epoch {epoch}: right {right}/{len(held_out)}, weights {weights:.6f}")
# +save(epoch, model.module, optimizer)
# ```
#
# - The optimizer belongs to the checkpoint, because its momentum decides the next step.
# - The file is a draft until it is complete. A program that is killed while it writes leaves a
#   broken draft, and the checkpoint before is still there.
# - `model.module` is saved, so the file also loads into a model that isn't wrapped.
# - `broadcast_object_list` sends any Python object, here the whole checkpoint, or `None`.
# - The network has a dropout now, so that there are random numbers to get wrong.

# %% [markdown]
# ## What happens
#
# The program runs for 3 epochs and writes 3 files. Then we delete the newest file, as if the last
# epoch had been interrupted, and start the program again: once as it is, and once without the line
# that sets the seed of the epoch.

# %% [markdown]
# **Predict first.** Which epochs does the second start train? And without that line, what is
# different in the end, although parameters and momentum come from the file?


# %%
@needs(ranks=2, fresh=True)
def save_and_resume(rank, world_size, device):
    seed = "torch.manual_seed(epoch * n + rank)", "pass"
    found, files = [], []
    with TemporaryDirectory() as folder:  # each rank has one, and rank 0 writes into its own
        newest = Path(folder, "epoch-002.pt")
        for changes in ([], [], [seed]):
            found += [started("8_save_and_resume.py", *changes, folder=folder)[rank]["weights"]]
            files += [newest.read_bytes() if rank == 0 else b""]
            newest.unlink(missing_ok=True)
    # proof
    whole, resumed, no_seed = found
    check(resumed, whole[2:], "the last epoch, made again")
    check(files[0] == files[1], True, "the same file")
    check(no_seed == resumed, False, "without the seed")
    return {"weights": whole, "resumed": resumed, "without the seed": no_seed}


# %%
if __name__ == "__main__":
    run(save_and_resume, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Only the last epoch, and its sum is 0.0605 again: the file that it writes is the same, bit for
# bit. Without the line it is 0.2651, because the second start drops other units. That model is as
# good, but you could never tell such a difference from a real mistake.
#
# </details>

# %% [markdown]
# On more than two ranks the last digits may differ, because DDP orders its buckets anew after a
# start, and sums are then rounded in another order. On another number of ranks than before, other
# units are dropped, too.

# %% [markdown]
# ## Pitfalls
#
# - Here a checkpoint is written after each epoch. If an epoch takes hours, you also want one inside
#   it, and the position in the data with it: see
#   [checkpoint](../../notebooks/training/checkpoint.ipynb).
# - A learning rate schedule and a `GradScaler` have a `state_dict()` as well. Save them too.

# %% [markdown]
# ## Write it yourself
#
# Who decides for all that a training ends? In your folder of
# [exercises](../../README.md#exercises):
#
# ```sh
# collectives practice early_stop
# ```

# %%
STEPS = [save_and_resume]

# %% [markdown]
# ## Read on
#
# Next lesson: [take_it_home](../../notebooks/route/take_it_home.ipynb), the finished program.
