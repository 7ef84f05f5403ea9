# %% [markdown]
"""
# fully_sharded: FSDP, each rank keeps 1/n of the weights

Each rank keeps 1/n of the parameters, too, and gathers a layer just before it computes it.

Your model has 70 billion parameters, and in bfloat16 they alone take more than a GPU of 80 GB has.
No optimizer that is sharded helps then: a rank must not even hold the parameters. In this lesson
you write stage 3 of ZeRO by hand, see what it costs, and find that three lines with PyTorch's
`fully_shard` train the same model and send the same bytes. Then you add what a real training needs:
micro-batches with one reduction, and bfloat16.

    python lessons/model_parallel/fully_sharded.py
    torchrun --nproc-per-node 4 lessons/model_parallel/fully_sharded.py
"""

# %%
import warnings

from collectives import check, check_samples, check_training, counting, needs, run
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.func import functional_call
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector

from collectives.pictures.memory_bars import MemoryBars
from costs import SMALL, Plan, costs
from measure import Live, held, sent
from model import HEADS, LENGTH, PARAMETERS, WIDTH, network
from one_process import UPDATES, backward, shard_of, train, without_state

# %% [markdown]
# ## The idea
#
# After the first two stages of [zero](../../notebooks/model_parallel/zero.ipynb), every rank still
# holds all parameters. But at any time it computes with one layer only. So each rank keeps a shard
# of each layer, and a layer exists as a whole only while the ranks compute it:
#
# 1. **Forward**: all ranks gather the layer, compute it with their own share of the batch, and drop
#    it.
# 2. **Backward**: they gather the layer once more, compute the gradients of the whole layer, and
#    `reduce_scatter` them. Each rank keeps the gradients of its shard.
# 3. **Update**: each rank updates its shard, and sends nothing.

# %% [markdown]
# ## The code
#
# Four of the imports are files beside this lesson:
# [model.py](../../lessons/model_parallel/model.py) has the network, and
# [one_process.py](../../lessons/model_parallel/one_process.py) trains it in one process; `costs`
# computes what a step should send, and `measure` measures it.
#
# `Gathered` computes a layer in forward, keeps nothing of it, and computes it once more in
# backward, so that autograd keeps neither activations nor parameters of the layer in between. (In
# [memory](../../notebooks/model_parallel/memory.ipynb), `Recomputed` does so for activations
# alone.) The layers themselves are on the device "meta", where they have shapes and no numbers.
# `functional_call` computes such a layer with the parameters that were gathered.

# %% [markdown]
# **Predict first.** A step of the first two stages sends 415,488 bytes from each of four ranks.
# Each number goes around the ring once to be reduced, and once to be gathered. Does a step of stage
# 3 send as much, half as much again, or twice as much?


# %%
def whole(layer, shard):
    """All parameters of a layer in one tensor, and by name."""
    flat = shard.new_empty(len(shard) * dist.get_world_size())
    dist.all_gather_single(flat, shard.detach())
    flat.requires_grad_()
    pieces = flat.split([one.numel() for one in layer.parameters()])
    named = zip(layer.named_parameters(), pieces, strict=True)
    return flat, {name: piece.view_as(one) for (name, one), piece in named}


class Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard, layer):
        ctx.layer = layer
        ctx.save_for_backward(x, shard)
        return functional_call(layer, whole(layer, shard)[1], (x,))

    @staticmethod
    def backward(ctx, gradient):
        x, shard = ctx.saved_tensors
        x = x.detach().requires_grad_(x.is_floating_point())
        with torch.enable_grad():
            flat, parameters = whole(ctx.layer, shard)
            result = functional_call(ctx.layer, parameters, (x,))
        result.backward(gradient)
        mine = torch.empty_like(shard)
        dist.reduce_scatter_single(mine, flat.grad / dist.get_world_size())
        return x.grad, mine, None


def on_my_share(forward, letters, following):
    rank, n = dist.get_rank(), dist.get_world_size()
    backward(forward, letters[rank::n], following[rank::n])


CALLS = ["all_gather_single", "reduce_scatter_single"]


def check_step(counts, what):
    """A step gathers four layers twice, and scatters the gradients of each once."""
    n = dist.get_world_size()
    calls = [counts[f"c10d.{name}"].calls // UPDATES for name in CALLS]
    check(calls, [8, 4], f"calls of a step, {what}")
    check(counts.total().calls, 12 * UPDATES, f"all calls, {what}")
    sends = sent(counts, n) // UPDATES
    # Gathered twice and scattered once: 3 * (n - 1) * 8 * PARAMETERS // n.
    check(sends, costs(SMALL, Plan(n, zero=3))["data"], f"bytes sent in a step, {what}")
    return dict(zip(CALLS, calls, strict=True)) | {"bytes sent": sends}


@needs(ranks=2)
def fully_sharded(rank, world_size, device):
    alone = train(network(device), device)
    model = network(device)
    shards = nn.ParameterList(
        parameters_to_vector(layer.parameters()).detach().chunk(world_size)[rank].clone()
        for layer in model
    )
    block = sum(one.numel() for one in model[1].parameters())
    model.to("meta")

    def forward(x):
        for layer, shard in zip(model, shards, strict=True):
            x = Gathered.apply(x, shard, layer)
        return x

    live = Live(shards)
    with counting() as counts:
        mine = train(shards, device, lambda _, *batch: on_my_share(forward, *batch), live=live)
    check_training(mine, shard_of(alone, rank, world_size), "stage 3", same_bits=False)
    of_a_step = check_step(counts, "stage 3")
    bytes_held = held(*mine) | {"activations": live.peak}
    for kind in ("parameters", "gradients"):
        check(bytes_held[kind], 8 * PARAMETERS // world_size, kind)
    # The inputs of two blocks, what one block keeps, its result and the gradient that arrives, the
    # parameters of this block; and the loss with its gradient.
    characters = 8 * LENGTH // world_size
    most = 8 * (characters * (19 * WIDTH + 4 + HEADS) + block + 2)
    if device.type == "cpu":  # on a GPU, attention in float64 keeps its scores, too
        check(live.peak, most, "activations")
    live = Live(one := network(device))
    copy = held(*train(one, device, on_my_share, live=live)) | {"activations": live.peak}
    bars = MemoryBars({"every rank has all": copy, "stage 3": bytes_held})
    return of_a_step | {"in all": bars}


# %%
if __name__ == "__main__":
    run(fully_sharded, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 623,232, half as much again, because the ranks gather every layer twice and reduce it once.
#
# In the picture, the activations of stage 3 include the parameters of the block that is computed.
#
# </details>

# %% [markdown]
# ### fully_shard
#
# You do not have to write this. `fully_shard`, or [FSDP2](../../docs/glossary.md#fsdp), turns every
# parameter of a layer into a [DTensor](../../docs/glossary.md#dtensor), of which each rank has a
# shard. Its hooks gather the layer before its forward and its backward pass, so the training loop
# stays as it is.

# %% [markdown]
# **Predict first.** The model has four layers. How often does a step with `fully_shard` gather a
# layer, and how often does it scatter gradients?


# %%
def sharded(model, **options):
    # The head returns a view. FSDP2 warns of changes to it in place, and nothing here makes one.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module")
    for layer in model:
        fully_shard(layer, **options)
    return fully_shard(model, **options)


def unsharded(model, device):
    copy = network(device)
    for mine, theirs in zip(copy.parameters(), model.parameters(), strict=True):
        mine.data = theirs.full_tensor().detach().double()
    return without_state(copy)


@needs(ranks=2)
def by_fully_shard(rank, world_size, device):
    alone, model = train(network(device), device), sharded(network(device))
    with counting() as counts:
        trained = train(model, device, on_my_share)
    check_samples(trained, alone, "fully_shard")
    of_a_step = check_step(counts, "fully_shard")
    shards = sum(one.to_local().nbytes for one in model.parameters())
    check(shards, 8 * PARAMETERS // world_size, "bytes of the shards")
    check_training(unsharded(model, device), without_state(alone[0]), "fully_shard")
    return of_a_step | {"bytes of the shards": shards}


# %%
if __name__ == "__main__":
    run(by_fully_shard, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 8 times and 4 times. These are our calls, and they send our bytes.
#
# </details>

# %% [markdown]
# ### Micro-batches
#
# If the share of a rank does not fit into memory, you compute it in micro-batches, and DDP has
# `no_sync` for that ([accumulation](../../notebooks/training/accumulation.ipynb)). In FSDP2 you say
# before each forward pass whether its gradients are to be reduced, by `set_requires_gradient_sync`.
# Until then a rank keeps the gradients of whole layers, which is what you pay.

# %% [markdown]
# **Predict first.** A step has two micro-batches, and reduces with the second one only. Are the
# layers gathered once for both, too?


# %%
def in_micro_batches(model, letters, following):
    rank, n = dist.get_rank(), dist.get_world_size()
    x, y = letters[rank::n].chunk(2), following[rank::n].chunk(2)
    for number in range(len(x)):  # of 8 ranks each has one sequence, so it is one
        model.set_requires_gradient_sync(number == len(x) - 1)
        loss = cross_entropy(model(x[number]).flatten(0, 1), y[number].flatten()) / len(x)
        loss.backward()


@needs(ranks=2)
def reduced_once(rank, world_size, device):
    alone, model = train(network(device), device), sharded(network(device))
    with counting() as counts:
        trained = train(model, device, in_micro_batches)
    check_samples(trained, alone, "micro-batches")
    check_training(unsharded(model, device), without_state(alone[0]), "micro-batches")
    parts = min(2, 8 // world_size)
    calls = [counts[f"c10d.{name}"].calls // UPDATES for name in CALLS]
    check(calls, [8 * parts, 4], "calls of a step, micro-batches")
    return dict(zip(CALLS, calls, strict=True))


# %%
if __name__ == "__main__":
    run(reduced_once, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# No. They are gathered 16 times, 8 times for each micro-batch, because a rank drops a layer after
# each pass. Only the 4 calls of `reduce_scatter` stay as many as before.
#
# </details>

# %% [markdown]
# ### bfloat16
#
# A GPU multiplies numbers of 16 bits much faster than those of 32. But an update is often too small
# to change a parameter of 16 bits, and a sum over many ranks loses small gradients. That is why a
# `MixedPrecisionPolicy` has two types: `param_dtype` to compute with, and `reduce_dtype` for the
# sum of the gradients, while the shards themselves and the optimizer stay in float32.

# %% [markdown]
# **Predict first.** The step trains in float32, and then with two policies. With the first of them,
# what becomes smaller: the shards that a rank holds, what it gathers, or what it reduces?


# %%
@needs(ranks=2)
def in_bfloat16(rank, world_size, device):
    half, policies = torch.bfloat16, {"float32": MixedPrecisionPolicy()}
    policies["float32 sums"] = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32)
    policies["bfloat16 sums"] = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=half)
    alone, found, rounded = train(network(device), device), {}, {}
    for name, policy in policies.items():
        model = sharded(network(device).float(), mp_policy=policy)
        with counting() as counts:
            check_samples(train(model, device, on_my_share, UPDATES), alone, name)
        shards = [one.to_local() for one in model.parameters()]
        gathered, reduced = (counts[f"c10d.{call}"].bytes // UPDATES for call in CALLS)
        found[name] = [sum(one.nbytes for one in shards), gathered, reduced]
        gradients = [one.grad.to_local() for one in model.parameters()]
        rounded[name] = all(one.equal(one.bfloat16().float()) for one in gradients)
        trained, exact = (
            parameters_to_vector(one.parameters())
            for one in (unsharded(model, device)[0], alone[0])
        )
        error, limit = (trained - exact).norm() / exact.norm(), 1e-5 if name == "float32" else 1e-1
        check(bool(error < limit), True, f"error below {limit}, {name}")
    held = 4 * PARAMETERS // world_size
    sizes = {"float32": (4, 4), "float32 sums": (2, 4), "bfloat16 sums": (2, 2)}
    for name, (compute, reduce) in sizes.items():
        wanted = [held, 2 * compute * PARAMETERS, reduce * PARAMETERS]
        check(found[name], wanted, f"bytes held, gathered and reduced in a step, {name}")
    wanted = {"float32": False, "float32 sums": False, "bfloat16 sums": True}
    check(rounded, wanted, "all gradients have 16 bits")
    return found


# %%
if __name__ == "__main__":
    run(in_bfloat16, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Only what it gathers: 138496 bytes in place of 276992, because the shards become bfloat16 before
# they travel. They are held in float32, and the gradients become float32 before they are added up.
#
# With the last policy the gradients travel as bfloat16, too, which saves half of their bytes. The
# price is that every sum of gradients is rounded to 16 bits, as the step checks.
#
# </details>

# %%
STEPS = [fully_sharded, by_fully_shard, reduced_once, in_bfloat16]

# %% [markdown]
# ## The proof
#
# The shards of parameters and of Adam's state are parts of those of one process, to 1e-9, both with
# our code and with `fully_shard`.

# %% [markdown]
# ## Make it wrong
#
# Make one change, run the steps, read what the proof says, and undo it.
#
# 1. **A gradient is not averaged.** In `whole`, change `flat.grad / dist.get_world_size()` to
#    `flat.grad`. It says `relative error`.
# 2. **Gathered a third time.** In `whole`, change `        result.backward(gradient)` to
#    `        whole(ctx.layer, shard), result.backward(gradient)`. It says
#    `should be [8, 4] [calls of a step, stage 3`. The model is right.
# 3. **Layers are not wrapped.** In `sharded`, change `for layer in model:` to `for layer in
#    ():`. It says `[calls of a step, fully_shard`, because all layers are then gathered at once.
# 4. **Reduced with the first micro-batch.** In `in_micro_batches`, change `number == len(x) - 1` to
#    `number == 0`. It says `relative error`.
# 5. **Sums in bfloat16.** In `in_bfloat16`, change `reduce_dtype=torch.float32` to
#    `reduce_dtype=half`. It says `[bytes held, gathered and reduced`.

# %% [markdown]
# ## Write it yourself
#
# In your folder of [exercises](../../README.md#exercises):
#
# ```sh
# collectives practice one_reduction
# ```

# %% [markdown]
# ## Read on
#
# Clipping and saving now need all ranks. Next lesson:
# [saving](../../notebooks/model_parallel/saving.ipynb).
