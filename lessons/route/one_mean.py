# %% [markdown]
"""
# one_mean: average the gradients, so that all ranks take the same step

The ranks average the gradients of their own images, and then all of them take the same step.

In [two_copies](../../notebooks/route/two_copies.ipynb) each rank trained a model of its own. At the
end of this lesson the ranks take every step together, also if one has more images than another.

    python lessons/route/one_mean.py
    torchrun --nproc-per-node 2 examples/route/2_one_mean.py
"""

# %%
from collectives import check, needs, run
from started import started

# %% [markdown]
# ## The idea
#
# The loss of a batch is a mean over its images, so its gradient is a mean, too. Each rank has
# computed this mean for its own half. What a step needs is the mean over the whole batch, and every
# rank needs it, because every rank updates its own copy of the weights.
#
# [`all_reduce`](../../notebooks/all_reduce.ipynb) gives every rank the sum of a tensor over all
# ranks, in the same tensor. Divide it by n, and you have the mean.

# %% [markdown]
# ## The difference
#
# This is what [2_one_mean.py](../../examples/route/2_one_mean.py) has and the program before does
# not:
#
# ```diff
#  optimizer.zero_grad()
# -loss.backward()
# +(loss * len(labels) * n / len(batch)).backward()  # n times this rank's share
# +for parameter in model.parameters():
# +    dist.all_reduce(parameter.grad)  # the sum of all ranks ...
# +    parameter.grad /= n  # ... becomes their mean
# ```
#
# The loss is also multiplied by a factor. Of the 125 images of a batch, 63 are on rank 0 and 62 on
# rank 1, so the factor is 2 * 63 / 125 or 2 * 62 / 125. The second question below asks what it is
# good for. With equal shares it is 1, and most scripts leave it out.

# %% [markdown]
# ## What happens
#
# The ranks still start with different weights, because each has its own seed.

# %% [markdown]
# **Predict first.** From now on both ranks take equal steps. Do their models become more alike,
# stay as different as they were, or drift apart?


# %%
@needs(ranks=2, fresh=True)
def one_mean(rank, world_size, device):
    ranks = started("2_one_mean.py")
    # proof
    pairs = zip(ranks[0]["weights"], ranks[1]["weights"], strict=True)
    distance = [round(b - a, 5) for a, b in pairs]
    check(distance, [distance[0]] * 3, "rank 1's sum less rank 0's")
    check(ranks[rank]["calls"], {"all_reduce": 4 * 12 * 3}, "4 parameters, 12 steps, 3 epochs")
    return {"weights": ranks[rank]["weights"], "distance": distance}


# %%
if __name__ == "__main__":
    run(one_mean, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# They stay as different as they were: the sums of the weights are 3.7025 apart after every epoch.
# Equal steps from two starts lead to two ends.
#
# </details>

# %% [markdown]
# ### Without the factor
#
# The next step gives both ranks the same seed, so that they start as one process does. Then it
# starts the program once as it is, once without the factor, and once as one process with whole
# batches.

# %% [markdown]
# **Predict first.** Without the factor, each step takes the mean of two means, one of 63 images and
# one of 62. Is that the mean of all 125? And if not, which images count too much?


# %%
@needs(ranks=2, fresh=True)
def without_factor(rank, world_size, device):
    seed = "torch.manual_seed(rank)", "torch.manual_seed(0)"
    factor = "(loss * len(labels) * n / len(batch)).backward()", "loss.backward()"
    found = {
        "one process": started("2_one_mean.py", seed, alone=True)[0]["weights"],
        "with factor": started("2_one_mean.py", seed)[rank]["weights"],
        "without": started("2_one_mean.py", seed, factor)[rank]["weights"],
    }
    # proof
    check(found["with factor"], found["one process"], "with the factor")
    gap = abs(found["without"][-1] - found["one process"][-1])
    check(gap > 1e-3, True, "without the factor there is a difference")
    return {name: weights[-1] for name, weights in found.items()}


# %%
if __name__ == "__main__":
    run(without_factor, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# No: the weights sum to 0.5792 instead of 0.5291, the sum of one process. Each mean counts for one
# half, so each of the 62 images counts a little more than each of the 63. That model is about as
# good, but it's another one, and the more the shares differ, the larger the error. So each rank
# multiplies its mean by its share of the batch, and by n, because the sum is divided by n at the
# end. Then two ranks train the model of one process.
#
# </details>

# %% [markdown]
# ## Write it yourself
#
# In your folder of [exercises](../../README.md#exercises):
#
# ```sh
# collectives practice average_the_gradients
# ```

# %%
STEPS = [one_mean, without_factor]

# %% [markdown]
# ## Read on
#
# Equal seeds gave the ranks one start, but that is fragile: it breaks as soon as one rank draws a
# random number more than another, or loads its weights from a file. Next lesson:
# [one_start](../../notebooks/route/one_start.ipynb), where rank 0 sends its model to all.
