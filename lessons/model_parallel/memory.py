# %% [markdown]
"""
# memory: parameters, gradients, optimizer states, activations

A training keeps four things in memory, and data parallel training divides only one of them.

Your model trains on one GPU, you make it twice as wide, and you get "out of memory". You add three
GPUs with data parallel training, and it still does not fit. Why, and what would help? In this
lesson you count what a rank holds, byte by byte, so that you know which of the four things is too
large. For one of them the cure is here: keep fewer activations, and compute them again.

    python lessons/model_parallel/memory.py
    torchrun --nproc-per-node 4 lessons/model_parallel/memory.py
"""

# %%
from functools import partial

from collectives import check, check_training, counting, run
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from collectives.pictures.memory_bars import MemoryBars
from measure import Live, held, sent
from model import HEADS, LENGTH, LETTERS, PARAMETERS, WIDTH, network
from one_process import UPDATES, backward, train

# %% [markdown]
# ## The idea
#
# These four things must fit into the memory of a GPU:
#
# - **Parameters**.
# - **Gradients**: one number for each parameter, from `backward()` to the optimizer's step.
# - **Optimizer state**: Adam keeps two running means for each parameter.
# - **Activations**: what the operations of the forward pass keep, because their backward pass needs
#   it. They grow with the batch and with the length of the text.
#
# | what does not fit | what helps |
# |---|---|
# | activations | this lesson |
# | optimizer state, gradients, parameters | [zero](../../notebooks/model_parallel/zero.ipynb) |
# | one layer | [tensor_parallel](../../notebooks/model_parallel/tensor_parallel.ipynb) |
# | many layers | [pipeline](../../notebooks/model_parallel/pipeline.ipynb) |
# | a long text | [long_text](../../notebooks/model_parallel/long_text.ipynb) |
# | many experts | [experts](../../notebooks/model_parallel/experts.ipynb) |
# | several of these | [choose](../../notebooks/model_parallel/choose.ipynb) |
#
# The lessons of this chapter cure these troubles one by one. All of them train the same
# [model](../../lessons/model_parallel/model.py), two transformer blocks that guess the next
# character of a text. A batch has 8 sequences of 32 characters. Every result is compared with [one
# process](../../lessons/model_parallel/one_process.py), in float64.

# %% [markdown]
# ## The code
#
# Begin with data parallel training, as in
# [one_mean](../../notebooks/route/one_mean.ipynb): every rank has a copy of the model,
# computes its share of the batch, and averages the gradients.
#
# Activations are the only part that you cannot read off the model, so count them. W is the width,
# 32. For one character, a block keeps:
#
# | operation | keeps | numbers |
# |---|---|---|
# | two norms | input, mean and spread | 2 W + 4 |
# | query, key, value | their input, once for all three | W |
# | attention | query, key, value, result; one number a head | 4 W + 8 |
# | out | the result of attention, which is kept already | 0 |
# | up, gelu, down | the input of each | W + 4 W + 4 W |
#
# The head keeps 2 W + 2 for its norm and its linear layer, and 128 logarithms, one for each letter.
# To compare this with a run, `held` adds up `nbytes`, and `Live` counts what still lives when a
# backward pass begins. Both are in [measure.py](../../lessons/model_parallel/measure.py).

# %% [markdown]
# **Predict first.** Four ranks share the batch. Which of the four numbers becomes a quarter of that
# of one process?

# %%
BLOCK = 16 * WIDTH + 4 + HEADS  # numbers that a block keeps for each character
HEAD = 2 * WIDTH + 2 + LETTERS


def on_my_shard(model, letters, following):
    rank, n = dist.get_rank(), dist.get_world_size()
    backward(model, letters[rank::n], following[rank::n])
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= n


def measured(device, backward=backward):
    """The model and optimizer of three steps, the bytes that this rank holds, what it calls."""
    live = Live(model := network(device))
    with counting() as counts:
        trained = train(model, device, backward, live=live)
    return trained, held(*trained) | {"activations": live.peak}, counts


def memory(rank, world_size, device):
    expected, alone, _ = measured(device)
    trained, mine, counts = measured(device, on_my_shard)
    check_training(trained, expected, "data parallel")

    tensors, characters = len(list(trained[0].parameters())), 8 * LENGTH // world_size
    check(mine["parameters"], 8 * PARAMETERS, "parameters")
    check(mine["gradients"], 8 * PARAMETERS, "gradients")
    # Adam also counts its steps, in 4 bytes for each tensor.
    check(mine["optimizer state"], 16 * PARAMETERS + 4 * tensors, "optimizer state")
    # And the loss, its gradient, and one number that it keeps for all characters together.
    if device.type == "cpu":  # on a GPU, attention in float64 keeps its scores, too
        check(mine["activations"], 8 * (characters * (2 * BLOCK + HEAD) + 3), "activations")
    calls, sends = counts.total().calls // UPDATES, sent(counts, world_size) // UPDATES
    check(calls, tensors, "calls of a step")
    check(sends, 2 * (world_size - 1) * 8 * PARAMETERS // world_size, "bytes sent in a step")
    bars = MemoryBars({"one process": alone, "a rank": mine})
    return mine | {"bytes sent": sends, "calls": calls, "in all": bars}


# %%
if __name__ == "__main__":
    run(memory, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Only the activations: 635,928 bytes. Each rank still holds all parameters, all gradients and the
# whole optimizer state, which is why more GPUs alone may not help.
#
# </details>

# %% [markdown]
# ### Compute it again
#
# What if even a rank's own share of the activations is too large? Then trade time for memory.
# [Activation checkpointing](https://arxiv.org/abs/1604.06174) keeps only the input of each block,
# and when `backward()` reaches a block, it computes the block's forward pass once more.
# `Recomputed` does this by hand: in its `forward` autograd keeps nothing of the block, and its
# `backward` makes a graph for this block alone.
#
# There is one trap. [Dropout](../../notebooks/training/seeds.ipynb) would draw other numbers the
# second time, and the gradients would be those of another pass. So `Recomputed` sets the random
# state of the first time again.

# %% [markdown]
# **Predict first.** The backward pass of a linear layer takes twice the operations of its forward
# pass. If the blocks are computed again, how many operations more does a step take for every 3?


# %%
class Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, block):
        ctx.block = block
        ctx.random, ctx.of_gpus = torch.get_rng_state(), torch.cuda.get_rng_state_all()
        ctx.save_for_backward(x)
        return block(x)

    @staticmethod
    def backward(ctx, gradient):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        gpus = range(torch.cuda.device_count())
        with torch.enable_grad(), torch.random.fork_rng(devices=gpus):
            torch.set_rng_state(ctx.random)
            torch.cuda.set_rng_state_all(ctx.of_gpus)
            result = ctx.block(x)
        result.backward(gradient)
        return x.grad, None  # the block is no tensor, and has no gradient


def by_hand(block, x):
    return Recomputed.apply(x, block)


def by_torch(block, x):
    return checkpoint(block, x, use_reentrant=False)


def with_blocks(call, model, letters, following):
    def forward(letters):
        embedding, *blocks, head = model
        x = embedding(letters)
        for block in blocks:
            x = call(block, x)
        return head(x)

    backward(forward, letters, following)


def operations(device, backward):
    """Those of a step. By itself, because below this counter some tensors live longer."""
    with FlopCounterMode(display=False) as counter:
        train(network(device), device, backward)
    return counter.get_total_flops() // UPDATES


def check_dropout(call, device):
    """Numbers that are dropped forward have no gradient, and the next pass drops others."""
    first, last = (nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout()).to(device) for _ in "12")
    result = call(last, call(first, torch.ones(1, WIDTH, requires_grad=True, device=device)))
    following = torch.get_rng_state()
    result.sum().backward()
    check(last[0].bias.grad != 0, result[0] != 0, f"dropout, {call.__name__}")
    same = torch.equal(torch.get_rng_state(), following)
    check(same, True, f"the next random numbers are new, {call.__name__}")


def recompute(rank, world_size, device):
    expected, everything, _ = measured(device)
    trained, less, _ = measured(device, again := partial(with_blocks, by_hand))
    check_training(trained, expected, "computed again", limit=0.0)
    theirs, checkpointed, _ = measured(device, partial(with_blocks, by_torch))
    check_training(theirs, expected, "checkpoint", limit=0.0)

    # The inputs of two blocks, what one block keeps, and the gradient that arrives there; the loss
    # and its gradient. We hold the block's result, too, while it goes back.
    peak = 8 * (8 * LENGTH * (2 * WIDTH + BLOCK) + 2)
    step, more = operations(device, backward), operations(device, again)
    blocks, head = 2 * 12 * WIDTH**2, WIDTH * LETTERS  # products for each character
    if device.type == "cpu":  # on a GPU, attention in float64 is made of products that keep scores
        check(checkpointed["activations"], peak, "activations, checkpoint")
        check(less["activations"], peak + 8 * 8 * LENGTH * WIDTH, "activations at the peak")
        check(step, 3 * 2 * 8 * LENGTH * (blocks + head), "forward once, backward twice as much")
        check(more - step, 2 * 8 * LENGTH * blocks, "the blocks once more")
    check_dropout(by_hand, device)
    check_dropout(by_torch, device)
    kept = {"activations": everything["activations"], "then": less["activations"]}
    bars = MemoryBars({"everything kept": everything, "computed again": less})
    return {"operations": step, "more": more - step} | kept | {"in all": bars}


# %%
if __name__ == "__main__":
    run(recompute, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 12,582,912 more, on top of 44,040,192. That is less than one for every 3, because the head is not
# computed again.
#
# In return the activations shrink from 2,543,640 bytes to 1,269,776, and a further block would add
# only its input.
#
# </details>

# %%
STEPS = [memory, recompute]

# %% [markdown]
# ## The proof
#
# `check_training` compares parameters and Adam's state with those of one process: after data
# parallel training they may differ by 1e-9, and after computing again not by a bit. The bytes,
# calls and operations must be those that we counted in the model.

# %% [markdown]
# ## Make it wrong
#
# Make one change, run the steps, read what the proof says, and undo it.
#
# 1. **Sent twice.** In `on_my_shard`, change `dist.all_reduce(parameter.grad)` to
#    `dist.all_reduce(parameter.grad.clone()), dist.all_reduce(parameter.grad)`. It says
#    `got 64, should be 32 [calls of a step`. The model is right.
# 2. **Nothing is computed again.** In `by_hand`, change `Recomputed.apply(x, block)` to `block(x)`.
#    It says `should be 1269776 [activations at the peak`.
# 3. **The gradient that arrives is not used.** In `by_hand`, change `result.backward(gradient)` to
#    `result.backward(torch.ones_like(gradient))`. It says `relative error`.
# 4. **Dropout draws anew.** In `by_hand`, change `torch.set_rng_state(ctx.random)` to `pass`. It
#    says `[dropout, by_hand`.

# %% [markdown]
# ## On GPUs
#
# - The peak decides, and you can ask the allocator for it: `torch.cuda.max_memory_allocated`
#   (`torch/cuda/memory.py`: "Return the maximum GPU memory occupied by tensors in bytes").

# %% [markdown]
# ## Read on
#
# The other three parts are still on every rank n times. Next lesson:
# [zero](../../notebooks/model_parallel/zero.ipynb), which shards two of them.
