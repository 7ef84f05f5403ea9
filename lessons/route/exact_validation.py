# %% [markdown]
"""
# exact_validation: validate on every rank, and count each image once

Every rank validates a part of the images, and the ranks add up their counts: no image is missing,
and none counts twice.

Each rank of [micro_batches](../../notebooks/route/micro_batches.ipynb) knows only the loss of its
own images. At the end of this lesson your program measures its model on all ranks, and gets the
number that one process would get. You also know why it may not be rank 0 alone that measures.

    python lessons/route/exact_validation.py
    torchrun --nproc-per-node 2 examples/route/7_exact_validation.py
"""

# %%
from collectives import check, needs, run
from started import started

# %% [markdown]
# ## The idea
#
# An accuracy is a count divided by a count. So let each rank count the images that the model gets
# right among its own, sum the counts with `all_reduce`, and divide at the end. This is exact if
# every image is on exactly one rank, however large the parts, and all ranks have one model. After a
# step the buffers of a batch norm differ by rank, and need a broadcast first.
#
# So the sampler of the training is the wrong one here, because it gives some images to two ranks. A
# training needs equal parts, since all ranks make its calls together. A validation doesn't:
# `model.module` sends nothing, so a rank with fewer images is done sooner, and waits at the
# `all_reduce`.

# %% [markdown]
# ## The difference
#
# This is what [7_exact_validation.py](../../examples/route/7_exact_validation.py) has and the
# program before does not:
#
# ```diff
# +@torch.no_grad()
# +def validate(model, data, device, rank, n):
# +    """How many images the model recognizes. Each rank counts its own, and no image is on two."""
# +    model.eval()
# +    right = torch.zeros((), dtype=torch.int64, device=device)
# +    for images, labels in DataLoader(Subset(data, range(rank, len(data), n)), 100):
# +        right += (model(images.to(device)).argmax(1) == labels.to(device)).sum()
# +    dist.all_reduce(right)
# +    return right.item()
#
#  torch.manual_seed(rank)  # as if it had none: every process begins with other numbers
# -data, _ = digits()
# +data, held_out = digits()
#
#      optimizer.step()
# +right = validate(model.module, held_out, device, rank, n)
#  weights = sum(one.sum().item() for one in model.parameters())
# -print(f"rank {rank}, epoch {epoch}: loss {loss.item():.4f}, weights {weights:.6f}")
# +print(f"rank {rank}, epoch {epoch}: right {right}/{len(held_out)}, weights {weights:.6f}")
# ```
#
# `model.eval()` turns off dropout and freezes the statistics of a batch norm. The line
# `model.train()`, which has been at the start of the epoch all along, turns them on again.

# %% [markdown]
# ## What happens
#
# There are 297 images for validation, 149 for rank 0 and 148 for rank 1. The step counts once with
# these parts, once with the parts of a `DistributedSampler`, and once in one process.

# %% [markdown]
# **Predict first.** The sampler gives both ranks 149 images, so the first image is on both. By how
# much can the count of right images be wrong, and in which direction?


# %%
@needs(ranks=2, fresh=True)
def exact_validation(rank, world_size, device):
    part = "Subset(data, range(rank, len(data), n))"
    sampler = part, "Subset(data, list(DistributedSampler(data, shuffle=False)))"
    exact = started("7_exact_validation.py")[rank]["right"]
    padded = started("7_exact_validation.py", sampler)[rank]["right"]
    (one_process,) = started("7_exact_validation.py", alone=True)
    # proof
    check(exact, one_process["right"], "right images of one process")
    check([b - a for a, b in zip(exact, padded, strict=True)], [0, 1, 1], "too many")
    return {"right": exact, "with the sampler": padded}


# %%
if __name__ == "__main__":
    run(exact_validation, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# By the one image that counts twice, and only upwards: 234 are right after the last epoch, and with
# the sampler it looks like 235. (After the first epoch the model gets that image wrong.) With n
# ranks, up to n - 1 images count twice.
#
# </details>

# %% [markdown]
# ### Rank 0 alone
#
# Many scripts validate on rank 0 only. The next step does so, with the wrapped model: `if rank ==
# 0: validate(model, ...)`, without the `all_reduce`.

# %% [markdown]
# **Predict first.** The forward of DDP broadcasts the buffers, and only rank 0 calls it in the
# validation. Does the program stop at its first validation, later, or never?


# %%
@needs(ranks=2, fresh=True)
def rank_0_alone(rank, world_size, device):
    alone = "validate(model.module ... n)", "rank or validate(model, held_out, device, 0, 1)"
    ranks = started("7_exact_validation.py", alone, ("    dist.all_reduce(right)\n", ""))
    # proof
    epochs = [len(one["right"]) for one in ranks]
    calls = [one["calls"]["broadcast"] for one in ranks]
    check(epochs, [2, 3], "epochs that end")
    check(calls[0] - calls[1], 1, "broadcasts that rank 0 makes alone")
    check([one["raised"] == "" for one in ranks], [False, True], "no error")
    return {"epochs": epochs[rank], "broadcast": calls[rank]}


# %%
if __name__ == "__main__":
    run(rank_0_alone, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Rank 0 ends 2 epochs, and stops in its last validation: with an error here, because rank 1 has
# closed its connection. Had rank 1 gone on, rank 0 would wait. And why not sooner? Earlier, the
# broadcast of rank 0's validation meets that of rank 1's next step, which is the same call; rank
# 0's own next step has none, because a forward under `no_grad` came before it.
#
# </details>

# %% [markdown]
# All ranks make the same calls in the same order: that is the rule. With `model.module` rank 0
# could validate alone, but all other GPUs would wait for it.

# %% [markdown]
# ## Write it yourself
#
# In your folder of [exercises](../../README.md#exercises):
#
# ```sh
# collectives practice accuracy_over_unequal_shards
# ```

# %%
STEPS = [exact_validation, rank_0_alone]

# %% [markdown]
# ## Read on
#
# [validation](../../notebooks/training/validation.ipynb) also gathers predictions, for a metric
# that is no sum.
#
# The model is trained and measured, and lost when the program ends. Next lesson:
# [save_and_resume](../../notebooks/route/save_and_resume.ipynb).
