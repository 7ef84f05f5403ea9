# %% [markdown]
"""
# accumulation: gradient accumulation, and no_sync in DDP

A step adds up the gradients of several micro-batches on each rank, and reduces them once.

You know `no_sync` from [micro_batches](../../notebooks/route/micro_batches.ipynb). This second
reading gives each token of a text its weight, and clips at the right place.

    python lessons/training/accumulation.py
    torchrun --nproc-per-node 4 lessons/training/accumulation.py
"""

# %%
from functools import partial
from collectives import check, check_samples, check_training, digits, run
from rank_grid import RankGrid
from one_process import batch_loss, network, train
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP

# %% [markdown]
# ## The idea
#
# Only the last reduction of a step is needed, so `model.no_sync()` turns off all reductions before
# it. The loss of a batch is a mean over the tokens of its texts. If the micro-batches have
# different numbers of tokens, the mean of their means is not the mean of the batch. So count the
# tokens of all ranks first, and divide each sum of losses by this count.

# %% [markdown]
# ## The code
#
# `cross_entropy` ignores labels that are -100, with which texts are padded to equal length.
# `add_gradient` multiplies by n, because DDP will divide by n.


# %%
def batches():
    return torch.randperm(1797, generator=torch.Generator().manual_seed(0)).split(64)[:-1]


# %%
def add_gradient(model, tokens, x, y):
    loss = cross_entropy(model(x), y, reduction="sum") * dist.get_world_size() / tokens
    loss.backward()
    return loss.item()


def accumulate(model, images, labels):
    rank, n = dist.get_rank(), dist.get_world_size()
    x, y = images[rank::n], labels[rank::n]
    tokens = (y != -100).sum()
    dist.all_reduce(tokens)
    *first, last = zip(x.chunk(4), y.chunk(4), strict=True)
    with model.no_sync():
        loss = sum(add_gradient(model, tokens, *part) for part in first)
    return loss + add_gradient(model, tokens, *last)


# %% [markdown]
# We begin without padding, so each image is a token. The list `counts` gets a 0 for each
# micro-batch, and a communication hook adds 1 when its gradients are reduced.

# %% [markdown]
# **Predict first.** In each of 28 steps, a rank computes 4 micro-batches, and only the `backward()`
# of the last reduces. Are the gradients of the first three lost?


# %%
def accumulation(rank, world_size, device):
    def note(counts, bucket):
        counts[-1] += 1
        return allreduce_hook(None, bucket)

    model, counts = DDP(network(0, device)), []
    model.register_forward_pre_hook(lambda model, inputs: counts.append(0))
    model.register_comm_hook(counts, note)
    trained, _ = train(model, accumulate, batches(), device)

    expected, _ = train(network(0, device), batch_loss, batches(), device)
    check_training(trained, expected, "micro-batches")
    check_samples(trained, expected, "micro-batches")
    check(counts, [0, 0, 0, 1] * 28, "reductions")
    rows = {"three steps": [count > 0 for count in counts[:12]]}
    legend = "Filled: the backward() of this micro-batch reduces. Four micro-batches are a step."
    shown = RankGrid(rows, "micro-batch", legend, shows="After which micro-batches a rank reduces")
    return {"reductions": sum(counts), "reduces": shown}


# %%
if __name__ == "__main__":
    run(accumulation, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# No: `.grad` holds the sum of all four, and this sum is reduced, 28 times in all.
#
# </details>

# %% [markdown]
# ### Tokens as weights
#
# Now the digits 0, 1 and 2 count as padding, so the number of tokens differs from rank to rank and
# from micro-batch to micro-batch.

# %% [markdown]
# **Predict first.** If a program divided by the number of images instead of tokens, would its
# gradients be too large or too small?


# %%
def mask(backward):
    return lambda model, images, labels: backward(model, images, labels.where(labels > 2, -100))


def tokens_as_weights(rank, world_size, device):
    trained, _ = train(DDP(network(0, device)), mask(accumulate), batches(), device)

    expected, _ = train(network(0, device), mask(batch_loss), batches(), device)
    check_training(trained, expected, "tokens")
    mine = digits(device)[1][batches()[0]][rank::world_size]
    tokens = [int((part > 2).sum()) for part in mine.chunk(4)]
    legend = "The digits 0, 1 and 2 are padding, and do not count."
    shows = "How many tokens each micro-batch of a rank has"
    return {"tokens": RankGrid({"step 1": tokens}, "micro-batch", legend, shows=shows)}


# %%
if __name__ == "__main__":
    run(tokens_as_weights, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Too small, by the share of the padding. With SGD that acts like a smaller learning rate, and one
# that differs from batch to batch.
#
# </details>

# %% [markdown]
# ### Clipping
#
# Clipping needs the norm of the whole gradient, which `.grad` holds on every rank after the last
# `backward()` of a step. Here the norm may be at most 0.5, and one process does the same by hand.

# %% [markdown]
# **Predict first.** Would the ranks still have one model if each clipped the gradients of its own
# micro-batches?


# %%
def clipped(norms, model, images, labels):
    loss = accumulate(model, images, labels)
    norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5).item())
    return loss


def by_hand(norms, model, images, labels):
    batch_loss(model, images, labels)
    norms.append(sum((one.grad**2).sum().item() for one in model.parameters()) ** 0.5)
    for one in model.parameters():
        one.grad *= min(0.5 / (norms[-1] + 1e-6), 1.0)  # no division by 0


def clipping(rank, world_size, device):
    norms, alone = [], []
    trained, _ = train(DDP(network(0, device)), partial(clipped, norms), batches(), device)

    expected, _ = train(network(0, device), partial(by_hand, alone), batches(), device)
    check_training(trained, expected, "clipping")
    check(torch.tensor(norms), torch.tensor(alone), "the norm of each step", rtol=1e-5)
    rows = {"clipped": [norm > 0.5 for norm in norms]}
    legend = "Filled: the gradient of this step is clipped."
    shown = RankGrid(rows, "step", legend, shows="In which steps the gradient is clipped")
    return {"largest norm": max(norms), "steps": shown}


# %%
if __name__ == "__main__":
    run(clipping, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# No: before the reduction each rank has a norm of its own, and so a factor of its own. After it,
# all ranks and the one process scale the same 11 of the 28 steps.
#
# </details>

# %%
STEPS = [accumulation, tokens_as_weights, clipping]

# %% [markdown]
# ## Make it wrong
#
# Make one change, run the steps, read what the proof says, and undo it.
#
# 1. **no_sync around backward alone.** In `accumulate`, change `with model.no_sync():` to `if
#    True:` and `loss.backward()` to `with model.no_sync(): loss.backward()`. It says `should be [0,
#    0, 0, 1`. The parameters are right, but nothing is saved: DDP decides in forward.
# 2. **A mean of means.** In `add_gradient`, change `reduction="sum") * dist.get_world_size() /
#    tokens` to `reduction="mean") / 4`. It says `rank 0/4: 0.bias.momentum_buffer: relative error
#    0.4`. This is the common loop, which divides each loss by the number of accumulation steps. It
#    is right if all micro-batches are equally large.

# %% [markdown]
# ## Write it yourself
#
# In your folder of [exercises](../../README.md#exercises):
#
# ```sh
# collectives practice the_last_micro_batches
# collectives practice one_call_per_step
# ```

# %% [markdown]
# ## Pitfalls
#
# - Under `no_sync`, each rank has gradients of its own in `.grad`, so neither step nor clip.

# %% [markdown]
# ## Read on
#
# - In the program to take home, [`train_step`](../../examples/train_ddp.py) has it:
#   `model.no_sync() if left else nullcontext()`.
#
# The loss that a rank prints is still that of its own shard. Next
# lesson: [validation](../../notebooks/training/validation.ipynb), which measures the model on all
# data.
