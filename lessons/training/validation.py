# %% [markdown]
"""
# validation

Every rank validates its share of the images, and the result is that of one process: no image is
forgotten, and none counts twice.

Your program prints a validation loss, and it looks plausible. But is it the loss of all images, or
only that of the images on rank 0? At the end of this lesson you can measure a model on all ranks
exactly, also when the shards are unequal, and you recognize two ways in which such a number is
quietly wrong.

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
# An accuracy is a quotient: correct images by all images. You cannot average the quotients of
# unequal shards, but you can sum their parts. So each rank counts, `all_reduce` adds up, and every
# rank divides at the end:
#
# | rank | images | correct | accuracy |
# |---|---|---|---|
# | 0 | 4 | 2 | 0.5 |
# | 1 | 1 | 1 | 1.0 |
# | both | 5 | 3 | 0.6, and not the mean 0.75 |
#
# The same holds for a loss, whose parts are the sum over the images and their number.

# %% [markdown]
# ## The code
#
# Every rank trains the model of [one_process](../../notebooks/training/one_process.ipynb) on 1,498
# images. The other 299 are for validation, a number that 2, 3, 4 or 5 ranks cannot share equally.
#
# ### Sums
#
# `measured` returns sums, the last of which is the number of images. A rank without images adds
# three zeros, so this also works with more ranks than images.

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
    run(validation)

# %% [markdown]
# <details><summary>Answer</summary>
#
# No: the loss of its own images is different on every rank, between 1.1605 and 1.2281. Each of
# these numbers looks like the loss of the model, but only 1.1958 is the loss of all images.
#
# </details>

# %% [markdown]
# ### A sampler that pads
#
# The sums are exact if each image is on one rank. `DistributedSampler` breaks that: it gives each
# rank equally many images, and if there are too few, it repeats the first ones. In a training that
# hardly matters, but a validation counts them twice.
#
# Sums can't repair this, and for a metric such as a median they don't exist at all. For both,
# gather the predictions, put them in the order of the images, and cut off the repeated ones.

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
    run(padded_validation)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Here a little too high: 238 images count as correct, and 237 are. In the picture you see why:
# ranks 0 and 3 both take image 0. If its prediction were wrong, the accuracy would be too low. The
# fewer images you have, the larger the difference.
#
# </details>

# %%
STEPS = [validation, padded_validation]

# %% [markdown]
# ## The proof
#
# `check` compares the sums with those of one process on all 299 images, and the predictions with
# its predictions. The tests do so with 1 to 5 ranks, and with more ranks than images.

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
# - `gather` and `all_gather` put their result into other tensors. A program that calls them and
#   then averages its own tensor prints the loss of one rank, a plausible number.
# - All ranks must validate. If only rank 0 calls `validated`, the whole training stops there, as
#   [training](../../notebooks/mistakes/training.ipynb) shows.
# - Print and save on rank 0, not on local rank 0, because each machine has a local rank 0.
# - Call `model.eval()` before the validation and `model.train()` after it if the network has
#   dropout or batch norm. This one has neither, so the proof would not notice.
# - The sums are float64, because in float32 integers are exact only up to 16,777,216.

# %% [markdown]
# ## Write it yourself
#
# In your folder of [exercises](../../README.md#exercises):
#
# ```sh
# collectives practice accuracy_of_padded_shards
# ```
#
# A job has two ranks on each machine, so the local rank is `rank % 2`. How many ranks print under
# `if rank == 0`, and how many under `if local_rank == 0`? Let the ranks count themselves.
#
# <details><summary>Answer</summary>
#
# ```python
# def who_prints(rank, world_size, device):
#     local_rank = rank % 2  # torchrun tells it in LOCAL_RANK
#     prints = torch.tensor([rank == 0, local_rank == 0], dtype=torch.int64, device=device)
#     dist.all_reduce(prints)
#     check(prints, torch.tensor([1, (world_size + 1) // 2]), "all_reduce")
#     return {"rank 0": prints[0], "local rank 0": prints[1]}
# ```
#
# ```text
# who_prints: proved on all 4 ranks
#   rank  rank 0  local rank 0
#   0     1       2
#   1     1       2
#   2     1       2
#   3     1       2
# ```
#
# With one machine there is no difference. With two, every line comes twice, and two ranks write the
# same checkpoint.
#
# </details>

# %% [markdown]
# ## Read on
#
# - In the program to take home,
#   [`validate`](../../examples/train_ddp.py) has it:
#   `dist.all_reduce(sums)`.
#
# This network draws no random numbers while it trains. Many networks do. Next lesson:
# [seeds](../../notebooks/training/seeds.ipynb), which of them must be equal on all ranks.
