# %% [markdown]
"""
# one_start: broadcast the model, so that all ranks start equal

Before the first step, rank 0 sends its model to all ranks: the parameters, and the buffers too.

In [one_mean](../../notebooks/route/one_mean.ipynb) the ranks took equal steps from different
starts. At the end of this lesson two ranks train the model of one process, whatever their seeds
are, and you know what belongs to a model beside its parameters.

    python lessons/route/one_start.py
    torchrun --nproc-per-node 2 examples/route/3_one_start.py
"""

# %%
from collectives import check, needs, run
from started import started

# %% [markdown]
# ## The idea
#
# Equal steps keep models equal only if they are equal in the beginning. It is safest to let one
# rank decide: [`broadcast`](../../notebooks/broadcast.ipynb) copies a tensor of one rank, here of
# rank 0, into the tensors of all others. It then doesn't matter where the weights of rank 0 come
# from: a seed, a file, or chance.

# %% [markdown]
# ## The difference
#
# This is what [3_one_start.py](../../examples/route/3_one_start.py) has and the program before does
# not:
#
# ```diff
#  model = Network().double()
# +for tensor in model.state_dict().values():  # its parameters and its buffers
# +    dist.broadcast(tensor, src=0)
# ```
#
# Why `state_dict()`, and not `parameters()`? Because a model has more than parameters. Our network
# multiplies the pixels by a random matrix first, which is a buffer: it belongs to the model, and
# nobody trains it. `state_dict()` has both, here 4 parameters and 1 buffer, and its tensors are
# those of the model. (Only a buffer with `persistent=False` is missing.)

# %% [markdown]
# ## What happens
#
# First we do it wrong, and send the parameters alone.

# %% [markdown]
# **Predict first.** Now each rank multiplies its pixels by its own random matrix, and the ranks
# still average their gradients. Do both ranks have equal weights after each of the 3 epochs?


# %%
@needs(ranks=2, fresh=True)
def parameters_alone(rank, world_size, device):
    change = "model.state_dict().values()", "[one.data for one in model.parameters()]"
    ranks = started("3_one_start.py", change)
    # proof
    check(ranks[0]["weights"], ranks[1]["weights"], "the weights of both ranks")
    check(ranks[rank]["calls"]["broadcast"], 4, "one broadcast for each parameter")
    return {name: ranks[rank][name] for name in ("loss", "weights")}


# %%
if __name__ == "__main__":
    run(parameters_alone, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Yes: the sums are 3.719 on both ranks, because equal weights and one gradient give equal weights
# again. But one set of weights must now serve two matrices, and the losses end at 1.1936 and
# 1.3126. No call fails, and whoever compares the weights finds nothing wrong.
#
# </details>

# %% [markdown]
# ### Parameters and buffers
#
# Now the program as it is, on two ranks and as one process.

# %% [markdown]
# **Predict first.** Each rank draws its weights with its own seed, and then gets those of rank 0.
# Rank 0 has the seed 0, as the one process has. Which numbers are equal now on both ranks: the
# weights, the losses, or both?


# %%
@needs(ranks=2, fresh=True)
def one_start(rank, world_size, device):
    ranks = started("3_one_start.py")
    (one_process,) = started("3_one_start.py", alone=True)
    # proof
    for one in ranks:
        check(one["weights"], one_process["weights"], "the weights of one process")
    check(ranks[0]["loss"] == ranks[1]["loss"], False, "equal losses")
    check(ranks[rank]["calls"]["broadcast"], 5, "4 parameters and 1 buffer")
    return {name: ranks[rank][name] for name in ("loss", "weights")}


# %%
if __name__ == "__main__":
    run(one_start, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# The weights: 0.5291 on both ranks, and in the one process too. The losses are 0.5429 and 0.5263,
# because each rank computes the loss of its own images. So never take the loss of one rank for the
# loss of the batch.
#
# </details>

# %% [markdown]
# You now have data parallel training, complete and correct: a share for each rank, one start, and
# one mean. All that follows makes it fit for real data and real models.

# %% [markdown]
# ## Write it yourself
#
# Are the weights equal on all ranks? You want to ask this in your own program when you doubt it.
# `all_reduce` can also take the smallest or the largest number, with `op=dist.ReduceOp.MIN` or
# `MAX`. In your folder of [exercises](../../README.md#exercises):
#
# ```sh
# collectives practice weights_are_equal
# ```

# %%
STEPS = [parameters_alone, one_start]

# %% [markdown]
# ## Read on
#
# So far every rank holds all images and picks its own by hand. Next lesson:
# [who_takes_what](../../notebooks/route/who_takes_what.ipynb), where a sampler deals them out and a
# loader loads them.
