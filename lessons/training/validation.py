# %% [markdown]
"""
# validation: exact metrics from all ranks

Every rank validates its share of the images, and the result is that of one process: no image is
forgotten, and none counts twice.

You know the exact count of [exact_validation](../../notebooks/route/exact_validation.ipynb). This
second reading does the same for a loss, and for a metric that is no sum.

    python lessons/training/validation.py
    torchrun --nproc-per-node 4 lessons/training/validation.py
"""

# %%
from collectives import check, digits, run
from rank_grid import dealt
from one_process import batch_loss, network, shuffled, train
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.utils.data import DistributedSampler

# %% [markdown]
# ## The idea
#
# The mean of the ranks' means is not the mean, but you can sum their parts: 2 right of 4 and 1
# right of 1 are 3 of 5, so 0.6, and not the mean 0.75. The parts of a loss are its sum and the
# number of images.

# %% [markdown]
# ## The code
#
# Every rank trains the model of [one_process](../../notebooks/training/one_process.ipynb) on 1,498
# images. The other 299 are for validation, which 2, 3, 4 or 5 ranks cannot share equally.
#
# ### Sums
#
# `measured` returns sums, the last of which is the number of images. A rank without images adds
# three zeros.

# %% [markdown]
# **Predict first.** All ranks have the same model. Does each find the model's loss on its own 74 or
# 75 images?


# %%
@torch.no_grad()
def measured(model, images, labels):
    outputs = model(images)
    loss = cross_entropy(outputs, labels, reduction="sum")
    return torch.stack([loss, (outputs.argmax(1) == labels).sum(), loss.new_tensor(len(labels))])


def validated(model, images, labels):
    rank, n = dist.get_rank(), dist.get_world_size()
    sums = measured(model, images[rank::n], labels[rank::n])
    dist.all_reduce(sums)
    return sums


def validation(rank, world_size, device):
    (model, _), _ = train(network(0, device), batch_loss, shuffled()[:1498].split(64), device)
    images, labels = (one[shuffled()[1498:]] for one in digits(device))
    sums = validated(model, images, labels)

    check(sums, measured(model, images, labels), "validated", rtol=1e-9)
    mine = measured(model, images[rank::world_size], labels[rank::world_size])
    of_all = {"loss of all": sums[0] / sums[2], "correct": sums[1], "images": sums[2]}
    right = cross_entropy(model(images), labels).detach()
    check(of_all["loss of all"], right, "loss of all", rtol=1e-9)
    return {"loss of mine": mine[0] / mine[2]} | of_all


# %%
if __name__ == "__main__":
    run(validation, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# No: the loss of its own images is different on every rank, between 1.1605 and 1.2281. Each looks
# like the loss of the model, but only 1.1958 is that of all images.
#
# </details>

# %% [markdown]
# ### A sampler that pads
#
# Sums can't repair the images that a `DistributedSampler` repeats, and for a metric such as a
# median they don't exist at all. For both, gather the predictions, put them in the order of the
# images, and cut off the rest.

# %% [markdown]
# **Predict first.** The sampler repeats the first image. Is the accuracy then too high or too low,
# or does it stay the same?


# %%
def padded_validation(rank, world_size, device):
    (model, _), _ = train(network(0, device), batch_loss, shuffled()[:1498].split(64), device)
    images, labels = (one[shuffled()[1498:]] for one in digits(device))
    mine = list(DistributedSampler(labels, world_size, rank, shuffle=False))
    predictions = model(images[mine]).argmax(1)
    gathered = [torch.empty_like(predictions) for _ in range(world_size)]
    dist.all_gather(gathered, predictions)

    in_order = torch.stack(gathered, dim=1).flatten()  # rank r has the images r, r + n, ...
    exact = in_order[: len(labels)]
    check(torch.equal(exact, model(images).argmax(1)), True, "the predictions of one process")
    with_repeated = (in_order == torch.cat([labels, labels])[: len(in_order)]).sum()
    shown = dealt({"images for validation": (range(len(labels)), mine)})
    return {"images": shown, "correct": with_repeated, "exact": (exact == labels).sum()}


# %%
if __name__ == "__main__":
    run(padded_validation, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Here a little too high: 238 images count as correct, and 237 are. Ranks 0 and 3 both take image 0,
# as the picture shows. If its prediction were wrong, the accuracy would be too low.
#
# </details>

# %%
STEPS = [validation, padded_validation]

# %% [markdown]
# ## The proof
#
# `check` compares sums and predictions with those of one process on all 299 images.

# %% [markdown]
# ## Make it wrong
#
# Make one change, run the steps, read what the proof says, and undo it.
#
# 1. **The sum is not taken.** In `validated`, change `dist.all_reduce(sums)` to
#    `dist.all_reduce(sums.clone())`. It says `57.0, 75.0], should be`.
# 2. **Every rank validates the same images.** In `validated`, change `images[rank::n],
#    labels[rank::n]` to `images[::n], labels[::n]`. It says `228.0, 300.0], should be`.
# 3. **The remainder is forgotten.** In `validated`, change `images[rank::n], labels[rank::n]` to
#    `images[: len(images) // n * n][rank::n], labels[: len(labels) // n * n][rank::n]`. It says
#    `234.0, 296.0], should be`.
# 4. **The mean loss of each rank is added.** In `measured`, change `reduction="sum"` to
#    `reduction="mean"`. It says `got [4.7826`.
# 5. **The repeated image stays.** In `padded_validation`, change `in_order[: len(labels)]` to
#    `in_order`. It says `got False, should be True`.
# 6. **The ranks one after the other.** In `padded_validation`, change `torch.stack(gathered,
#    dim=1).flatten()` to `torch.cat(gathered)`. It says `got False, should be True`.

# %% [markdown]
# ## Pitfalls
#
# - Print and save on rank 0, not on local rank 0, because each machine has a local rank 0.
# - Call `model.eval()` before the validation and `model.train()` after it. This network has neither
#   dropout nor batch norm, so the proof would not notice.

# %% [markdown]
# ## Write it yourself
#
# In your folder of [exercises](../../README.md#exercises):
#
# ```sh
# collectives practice accuracy_of_padded_shards
# ```

# %% [markdown]
# ## Read on
#
# - In the program to take home,
#   [`validate`](../../examples/train_ddp.py) has it:
#   `dist.all_reduce(sums)`.
#
# This network draws no random numbers while it trains. Next lesson:
# [seeds](../../notebooks/training/seeds.ipynb), which of them must be equal on all ranks.
