# %% [markdown]
"""
# two_copies: start a training script twice, and get two models

Start one script twice, and you have two programs: two models train side by side, and neither knows
of the other.

You have a training script for one GPU, and a machine with two. In nine lessons that script becomes
a DDP training that you can take home. It is always the same program, and each lesson adds a few
lines to it. This lesson only starts it twice, so that you see what is missing.

    python lessons/route/two_copies.py
    torchrun --nproc-per-node 2 examples/route/1_two_copies.py
"""

# %%
from collectives import check, needs, run
from started import started

# %% [markdown]
# ## The idea
#
# `torchrun --nproc-per-node 2` starts your script twice. Each copy, called a rank, is a process
# with its own memory. So each copy draws its own random weights, and takes its own steps.
# `init_process_group` introduces the copies to each other, but changes nothing about the training:
# as long as you send nothing, nothing is sent.
#
# Two copies are useful only if they divide the work. Here every rank takes every n-th image of each
# batch, where n is the number of ranks: rank 0 takes the images at the positions 0, 2, 4, ... and
# rank 1 those at 1, 3, 5, ...

# %% [markdown]
# ## The program
#
# [1_two_copies.py](../../examples/route/1_two_copies.py) trains a small network on 1,500 images of
# digits, 125 in a batch. This is its function `main`; the last lesson has the rest:
#
# ```python
# def main():
#     dist.init_process_group("gloo")
#     rank, n = dist.get_rank(), dist.get_world_size()
#     torch.manual_seed(rank)  # as if it had none: every process begins with other numbers
#     data, _ = digits()
#     model = Network().double()
#     optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
#     for epoch in range(EPOCHS):
#         order = torch.randperm(1500, generator=torch.Generator().manual_seed(epoch))
#         model.train()
#         for batch in order.split(BATCH):
#             images, labels = data[batch[rank::n]]  # every n-th image of the batch
#             loss = cross_entropy(model(images), labels)
#             optimizer.zero_grad()
#             loss.backward()
#             optimizer.step()
#         weights = sum(one.sum().item() for one in model.parameters())
#         print(f"rank {rank}, epoch {epoch}: loss {loss.item():.4f}, weights {weights:.6f}")
# ```
#
# Only four lines are new to a script for one process: the group, the rank and n, the seed, and the
# share of the batch. The seed of each rank stands for having no seed, with which every process
# would start with other random numbers, too.
#
# Each rank prints the sum of its weights, because two models with different sums are different
# models. The numbers are float64, so that rounding hides nothing. And the network has a *buffer*, a
# tensor that belongs to the model but isn't trained, like the running mean of a batch norm.

# %% [markdown]
# ## What happens
#
# The step below starts the program three times, and collects what it prints after each of 3 epochs:
# first on two ranks as it is, then on two ranks with one seed, and then in a world of one rank. The
# last start is the training of one process, with all images. The table has the losses of the first
# start, and all sums of weights in the end.
#
# In all nine lessons `started` runs a program so. `seed` is a pair: a line of the program, and what
# takes its place in this start. `@needs(ranks=2, fresh=True)` asks for two processes without a
# group.

# %% [markdown]
# **Predict first.** The three starts make five trainings: two with the seeds 0 and 1, two with the
# seed 0, and that of the one process, whose seed is 0, too. How many different models do they give?


# %%
@needs(ranks=2, fresh=True)
def two_copies(rank, world_size, device):
    seed = "torch.manual_seed(rank)", "torch.manual_seed(0)"
    own_seed = started("1_two_copies.py")
    one_seed = started("1_two_copies.py", seed)
    (one_process,) = started("1_two_copies.py", alone=True)
    # proof
    models = {tuple(one["weights"]) for one in [*own_seed, *one_seed, one_process]}
    check(one_seed[0]["weights"], own_seed[0]["weights"], "rank 0, twice")
    check(len(models), 4, "different models")
    check([one["calls"] for one in own_seed], [{}, {}], "calls")
    found = {"own seed": own_seed[rank], "one seed": one_seed[rank], "one process": one_process}
    sums = {name: one["weights"][-1] for name, one in found.items()}
    return {"loss": own_seed[rank]["loss"]} | sums


# %%
if __name__ == "__main__":
    run(two_copies, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Four. Rank 0 has trained the same model twice, because its seed and its images were the same. All
# others differ: the weights of rank 1 sum to 5.8845 with its own seed and to 2.3419 with that of
# rank 0, and those of the one process to 0.5291. So an equal start isn't enough, because each rank
# learns from other images. The ranks have met, and then nobody said a word: not a single call was
# made in the whole training.
#
# </details>

# %% [markdown]
# People do make this mistake, because it looks fine: both GPUs are busy, both losses fall, and no
# error comes.

# %% [markdown]
# ## The proof
#
# `started` runs the file in the ranks of this step, reads the lines that it prints, and counts the
# calls that reach the process group. So you see what you get when you type the command at the top.

# %% [markdown]
# ## Write it yourself
#
# Another way to share: cut the images into n pieces, one for each rank. In your [folder of
# exercises](../../README.md#exercises):
#
# ```sh
# collectives practice shards_with_a_remainder
# ```

# %%
STEPS = [two_copies]

# %% [markdown]
# ## Read on
#
# The copies must become one model. It would be enough if all of them took the same steps from the
# same start. Next lesson: [one_mean](../../notebooks/route/one_mean.ipynb), in which they take the
# same steps.
