# %% [markdown]
"""
# micro_batches: gradient accumulation with no_sync

A rank computes its batch in parts and adds up their gradients, and only the last part sends them.

The batch that trains your model well is too large for the memory of a GPU. So you compute it in
parts, as you would in one process. With [DDP](../../notebooks/route/wrapped_in_ddp.ipynb) there are
two ways to get it wrong: one costs time, and the other one quietly trains another model. At the end
of this lesson you avoid both.

    python lessons/route/micro_batches.py
    torchrun --nproc-per-node 2 examples/route/6_micro_batches.py
"""

# %%
from collectives import check, needs, run
from started import started

# %% [markdown]
# ## The idea
#
# `backward()` adds to `.grad`. So if you call it for each part, and multiply each loss by the
# part's share of the batch, `.grad` holds the gradient of the whole batch in the end.
#
# DDP reduces the gradients in every `backward()`. It needn't: the last reduction takes whatever has
# been added up in `.grad` since the last step. Inside `model.no_sync()` `backward()` sends nothing,
# so all parts but the last belong in there. (Forward sends the buffers only if the forward before
# it was outside, and had gradients: once a step.)

# %% [markdown]
# ## The difference
#
# This is what [6_micro_batches.py](../../examples/route/6_micro_batches.py) has and the program
# before does not:
#
# ```diff
# -EPOCHS, BATCH = 3, 120
# +EPOCHS, BATCH, PARTS = 3, 120, 4
#
#  for images, labels in loader:
# -    loss = cross_entropy(model(images.to(device)), labels.to(device))
#      optimizer.zero_grad()
# -    loss.backward()
# +    parts = list(zip(images.chunk(PARTS), labels.chunk(PARTS), strict=True))
# +    for number, (x, y) in enumerate(parts, 1):
# +        with model.no_sync() if number < len(parts) else nullcontext():
# +            loss = cross_entropy(model(x.to(device)), y.to(device))
# +            (loss * len(y) / len(labels)).backward()
# ```
#
# `nullcontext()` does nothing. Both forward and backward stand inside the `with`, because DDP
# decides in forward what it will do in backward. The factor is a part's share of the images: 15 of
# 60 usually, but the last batch of an epoch has only 30 on each rank, in parts of 8, 8, 8 and 6.

# %% [markdown]
# ## What happens
#
# The step runs the program as it is, without `no_sync`, and the program before, which knows no
# parts.

# %% [markdown]
# **Predict first.** In 39 steps, each of 4 parts, how often is `all_reduce` called with `no_sync`
# and how often without? And which of the two ends with the weights of the program before?


# %%
@needs(ranks=2, fresh=True)
def gradients_sent_once(rank, world_size, device):
    sync = "model.no_sync() if number < len(parts) else nullcontext()", "nullcontext()"
    mine = started("6_micro_batches.py")[rank]
    less = started("6_micro_batches.py", sync)[rank]
    before = started("5_wrapped_in_ddp.py")[rank]
    # proof
    check([mine["weights"], less["weights"]], 2 * [before["weights"]], "weights of whole batches")
    calls = [one["calls"]["all_reduce"] for one in (mine, less)]
    check(calls, [39, 4 * 39], "calls of all_reduce")
    check(mine["calls"]["broadcast"], before["calls"]["broadcast"], "buffers, once a step")
    return {"all_reduce": calls[0], "without no_sync": calls[1], "weights": mine["weights"]}


# %%
if __name__ == "__main__":
    run(gradients_sent_once, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 39 times with `no_sync`, and 4 * 39 = 156 times without. Both end with the weights of the program
# before. So you notice a missing `no_sync` only by the clock.
#
# </details>

# %% [markdown]
# ### What is left over
#
# Most scripts have another loop. There the loader gives micro-batches, and every fourth one ends
# with a step:

# %%
LOOP = """\
        for number, (images, labels) in enumerate(loader, 1):
            last = number % 4 == 0
            with nullcontext() if last else model.no_sync():
                loss = cross_entropy(model(images.to(device)), labels.to(device)) / 4
                loss.backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()
"""

# %% [markdown]
# **Predict first.** A rank has 750 images, so 50 micro-batches of 15, and each step takes 4. What
# becomes of the 2 micro-batches that are left over at the end of an epoch?


# %%
@needs(ranks=2, fresh=True)
def left_over(rank, world_size, device):
    loop = "        for images, labels in loader:\n ... optimizer.step()\n", LOOP
    size = "BATCH // n, sampler", "BATCH // n // 4, sampler"
    common = started("6_micro_batches.py", loop, size)[rank]
    right = started("6_micro_batches.py")[rank]
    # proof
    check(common["calls"]["all_reduce"], 50 // 4 * 3, "steps")
    check(abs(common["weights"][-1] - right["weights"][-1]) > 1e-2, True, "other weights")
    return {"steps": common["calls"]["all_reduce"], "weights": common["weights"]}


# %%
if __name__ == "__main__":
    run(left_over, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# There are 36 steps: 50 = 4 * 12 + 2, and 3 * 12 = 36. The last two micro-batches aren't lost, and
# that is the trouble: their gradients wait in `.grad` until the first step of the next epoch. That
# step is the sum of 4 + 2 = 6 micro-batches, divided by 4: 6 / 4 = 1.5 times as large as it should
# be. No error comes.
#
# </details>

# %% [markdown]
# Our program has no left-over, since it cuts up a batch instead of counting micro-batches. If you
# keep the other loop, take a step after the last micro-batch of an epoch, too, outside `no_sync`,
# and multiply each loss by its share of the images of that step.

# %% [markdown]
# ## Write it yourself
#
# In your folder of [exercises](../../README.md#exercises):
#
# ```sh
# collectives practice the_last_micro_batches
# ```

# %%
STEPS = [gradients_sent_once, left_over]

# %% [markdown]
# ## Read on
#
# Your program trains, but how good is the model? Next lesson:
# [exact_validation](../../notebooks/route/exact_validation.ipynb), which measures it on all ranks.
