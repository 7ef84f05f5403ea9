# %% [markdown]
"""
# who_takes_what: DistributedSampler, each rank its share of the data

A sampler says which images are this rank's in this epoch, and a loader loads these and no others.

In [one_start](../../notebooks/route/one_start.ipynb) every rank held all images, and picked its
share of each batch by hand. That ends when the data no longer fit into memory. At the end of this
lesson `DistributedSampler` does it for you, and you know what it does without telling you.

    python lessons/route/who_takes_what.py
    torchrun --nproc-per-node 2 examples/route/4_who_takes_what.py
"""

# %%
from collectives import check, needs, run
from started import started

# %% [markdown]
# ## The idea
#
# A `DataLoader` asks a sampler for the numbers of the images, and loads those. So if each rank has
# a sampler that gives it other numbers, each rank loads only its own images. `DistributedSampler`
# does what you have done by hand: it shuffles all numbers with a seed that is equal on all ranks,
# and rank r takes the numbers at the positions r, r + n, r + 2 n and so on.

# %% [markdown]
# ## The difference
#
# This is what [4_who_takes_what.py](../../examples/route/4_who_takes_what.py) has and the program
# before does not:
#
# ```diff
# -EPOCHS, BATCH = 3, 125
# +EPOCHS, BATCH = 3, 120
#
#  data, _ = digits()
# +sampler = DistributedSampler(data)
# +loader = DataLoader(data, BATCH // n, sampler=sampler, num_workers=1)
#
#  for epoch in range(EPOCHS):
# -    order = torch.randperm(1500, generator=torch.Generator().manual_seed(epoch))
# +    sampler.set_epoch(epoch)  # else every epoch has the order of the first
#      model.train()
# -    for batch in order.split(BATCH):
# -        images, labels = data[batch[rank::n]]  # every n-th image of the batch
# +    for images, labels in loader:
#          loss = cross_entropy(model(images), labels)
#          optimizer.zero_grad()
# -        (loss * len(labels) * n / len(batch)).backward()  # n times this rank's share
# +        loss.backward()
# ```
#
# - The batch size of a loader is that of one rank, so `BATCH` is divided by n. It is 120 now,
#   because all shares must be equally large; in return, the factor of the loss is gone.
# - The sampler shuffles with `seed`, by default 0, plus the number that you pass to `set_epoch`,
#   which begins at 0.
# - `num_workers=1` gives each rank a process of its own that loads the next batch meanwhile: 8
#   ranks with 4 workers each are 40 processes.

# %% [markdown]
# ## What happens
#
# First the program as it is, on two ranks and as one process, and then without the line that calls
# `set_epoch`.

# %% [markdown]
# **Predict first.** You forget `set_epoch`. There is no error, and the ranks still share the images
# without a gap. From which epoch on do the weights differ, and why?


# %%
@needs(ranks=2, fresh=True)
def who_takes_what(rank, world_size, device):
    ranks = started("4_who_takes_what.py", workers=1)
    (one_process,) = started("4_who_takes_what.py", alone=True)
    forgotten = started("4_who_takes_what.py", ("sampler.set_epoch(epoch)", "pass"))
    # proof
    mine, without = ranks[rank]["weights"], forgotten[rank]["weights"]
    check(mine, one_process["weights"], "the weights of one process")
    check([a == b for a, b in zip(mine, without, strict=True)], [True, False, False], "equal")
    return {"weights": mine, "without set_epoch": without}


# %%
if __name__ == "__main__":
    run(who_takes_what, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# After the first epoch the sums are -0.0885 both times, and from the second epoch on they differ:
# without `set_epoch` every epoch has the order of the first, and no message says so.
#
# </details>

# %% [markdown]
# ### When the images can't be shared equally
#
# 1,500 images are 750 for each of two ranks. But 1,499 images can't be shared equally, and yet
# every rank must take equally many steps, because in each step all ranks call `all_reduce`.

# %% [markdown]
# **Predict first.** How can a sampler give both ranks equally many of 1,499 images? And does what
# it does change the model?


# %%
@needs(ranks=2, fresh=True)
def one_image_less(rank, world_size, device):
    less = "(0, 1500)", "(0, 1499)"
    count = ": loss", ": images {len(sampler)}, loss"
    ranks = started("4_who_takes_what.py", less, count)
    (one_process,) = started("4_who_takes_what.py", less, alone=True)
    # proof
    mine, alone = ranks[rank]["weights"][-1], one_process["weights"][-1]
    check([one["images"][0] for one in ranks], [750, 750], "images of each rank")
    check(abs(mine - alone) > 1e-2, True, "other weights")
    return {"images": ranks[rank]["images"][0], "weights": mine, "one process": alone}


# %%
if __name__ == "__main__":
    run(one_image_less, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Each rank gets 750 images, and 2 * 750 = 1500, so one image is on both ranks. It counts twice, and
# the weights sum to 0.3688, not to 0.3154 as in one process. The other way is `drop_last=True`:
# then the sampler leaves an image out.
#
# </details>

# %% [markdown]
# In most trainings that does no harm, because in the next epoch it is another image. In a
# validation it does, as a later lesson shows. [sampler](../../notebooks/training/sampler.ipynb) has
# more, also on ranks that run out of data.

# %% [markdown]
# ## Write it yourself
#
# The ranks must also agree on *which* data there are. In your folder of
# [exercises](../../README.md#exercises):
#
# ```sh
# collectives practice one_data_set
# ```

# %%
STEPS = [who_takes_what, one_image_less]

# %% [markdown]
# ## Read on
#
# Broadcast, all_reduce, divide: your program still does this by hand, and it waits for each of the
# gradients in turn. Next lesson: [wrapped_in_ddp](../../notebooks/route/wrapped_in_ddp.ipynb),
# where one line does it all.
