# %% [markdown]
"""
# zero: ZeRO, each rank keeps 1/n of the optimizer states

Data parallel training keeps n copies of the same numbers, one on each rank, and ZeRO lets each rank
keep 1/n of them.

Adam's state is twice as large as the model, and every data parallel rank stores all of it, although
all copies are equal. You would like to keep a quarter on each of four ranks, and you expect to pay
for it with messages. In this lesson you shard the optimizer state, then the gradients, and count
what each stage holds and sends. The surprise is the price.

    python lessons/model_parallel/zero.py
    torchrun --nproc-per-node 4 lessons/model_parallel/zero.py
"""

# %%
from functools import partial

from collectives import check, check_samples, check_training, counting, needs, note_samples, run
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from collectives.pictures.memory_bars import MemoryBars
from costs import SMALL, Plan, costs
from measure import Live, held, sent
from model import LENGTH, PARAMETERS, WIDTH, batch, network
from one_process import UPDATES, backward, shard_of, train, without_state

# %% [markdown]
# ## The idea
#
# In [memory](../../notebooks/model_parallel/memory.ipynb), every rank held all parameters, all
# gradients and the whole optimizer state. It does not have to, because Adam updates each number
# without looking at the others: rank r can update 1/n of the numbers, and needs only their
# gradients and their state. [ZeRO](../../docs/glossary.md#zero) has three stages ([Rajbhandari et
# al.](https://arxiv.org/abs/1910.02054)):
#
# 1. The **optimizer state** is sharded. After `backward()` the ranks reduce and scatter the
#    gradients, each rank updates its shard of the parameters, and then all ranks gather the new
#    parameters.
# 2. The **gradients** are sharded, too. The ranks reduce and scatter those of a layer as soon as
#    `backward()` has computed them, and each rank keeps only its shard, so that the gradients of
#    all layers are never in memory at once.
# 3. The **parameters** are sharded, too. The ranks gather a layer just before they compute it, and
#    drop it afterwards.
#
# This lesson has the first two stages, and the next one has the third.
#
# ![Bars for DDP and the three stages of ZeRO: from stage to stage another part becomes an
# eighth](../../docs/ideas/zero.svg)
#
# These are the bytes that each of eight ranks holds of a model of 8 billion parameters: 4 bytes for
# a parameter and for its gradient, and 8 for the state of Adam.

# %% [markdown]
# ## The code
#
# `flattened` puts all parameters of a layer into one tensor, because one call for a layer is
# cheaper than one for each parameter. The parameters stay views of this tensor, so that
# `all_gather_single` writes new ones into the model. The shard of a rank is a view as well, and
# takes no memory. Each layer of the model has a size that 2, 4 and 8 ranks divide evenly; any other
# would need padding.
#
# In stage 1, the ranks scatter the gradients after `backward()`. In stage 2, autograd calls
# `scatter_if_complete` whenever it has computed the gradient of a parameter, and the last one of a
# layer starts the `reduce_scatter`. Just before each `reduce_scatter` we note the bytes of all
# tensors that live.

# %% [markdown]
# **Predict first.** With four ranks, the `all_reduce` of the gradients in
# [memory](../../notebooks/model_parallel/memory.ipynb) makes each rank send 415,488 bytes. Does a
# step of stage 1 send more bytes, fewer, or as many?


# %%
def flattened(layer):
    flat = torch.cat([one.detach().flatten() for one in layer.parameters()])
    pieces = flat.split([one.numel() for one in layer.parameters()])
    for parameter, piece in zip(layer.parameters(), pieces, strict=True):
        parameter.data = piece.view_as(parameter)
    return flat


def scatter_gradients(layer, shard):
    """Average the gradients of a layer: each rank gets those of its shard, and keeps no others."""
    gradients = torch.cat([one.grad.flatten() for one in layer.parameters()])
    shard.grad = torch.empty_like(shard)
    dist.reduce_scatter_single(shard.grad, gradients / dist.get_world_size())
    for parameter in layer.parameters():
        parameter.grad = None


def on_my_share(forward, letters, following):
    rank, n = dist.get_rank(), dist.get_world_size()
    backward(forward, letters[rank::n], following[rank::n])


def train_sharded(device, early):
    """Stage 1, or stage 2 if gradients are scattered early, while `backward()` computes others."""
    model, (rank, n) = network(device), (dist.get_rank(), dist.get_world_size())
    with (live := Live()):
        flats = [flattened(layer) for layer in model]
        shards = nn.ParameterList(flat.chunk(n)[rank] for flat in flats)
    optimizer, alive = torch.optim.Adam(shards), []
    note_samples(model, optimizer)

    def scatter_if_complete(layer, shard, _):
        if all(one.grad is not None for one in layer.parameters()):
            alive.append(live.now)
            scatter_gradients(layer, shard)

    for layer, shard in zip(model, shards, strict=True):
        for parameter in layer.parameters() if early else ():
            hook = partial(scatter_if_complete, layer, shard)
            parameter.register_post_accumulate_grad_hook(hook)
    with counting() as counts:
        for step in range(UPDATES):
            with live:
                on_my_share(model, *batch(step, device))
                for layer, shard in zip(model, shards, strict=True) if not early else ():
                    scatter_if_complete(layer, shard, None)
            optimizer.step()
            optimizer.zero_grad()
            for flat, shard in zip(flats, shards, strict=True):
                dist.all_gather_single(flat, shard.detach())
    return model, (shards, optimizer), alive, counts


def check_step(counts, times, calls):
    """A step sends all parameters `times` times around a ring of n ranks."""
    n = dist.get_world_size()
    sends = sent(counts, n) // UPDATES
    check(sends, times * (n - 1) * 8 * PARAMETERS // n, "bytes sent in a step")
    check(counts.total().calls, UPDATES * calls, "calls of three steps")
    return {"bytes sent": sends, "calls": calls}


@needs(ranks=2)
def zero(rank, world_size, device):
    alone = train(network(device), device)
    block, head = (sum(one.numel() for one in alone[0][i].parameters()) for i in (1, 3))
    bars, alive = {"one process": held(*alone)}, {}
    for early, name in ((False, "stage 1"), (True, "stage 2")):
        model, sharded, alive[name], counts = train_sharded(device, early)
        check_training(without_state(model), without_state(alone[0]), name)
        check_samples((model, sharded[1]), alone, name)
        check_training(sharded, shard_of(alone, rank, world_size), name, same_bits=False)
        of_a_step = check_step(counts, times=2, calls=8)
        # With Adam's counters: 4 bytes for each of four shards.
        state = costs(SMALL, Plan(world_size, zero=1))["optimizer state"] + 16
        bars[name] = held(model, sharded[1])
        check(bars[name]["optimizer state"], state, "optimizer state")
    # Four layers in each of three steps. All parameters live all the time.
    check(
        max(alive["stage 1"]),
        8 * 2 * PARAMETERS,
        "bytes of parameters and gradients, stage 1",
    )
    # Before the first block is scattered: its gradients, and the shards of head and second block;
    # the gradient of the block's input, the loss and its gradient.
    most = 8 * (block + (block + head) // world_size)
    others = 8 * (8 * LENGTH // world_size * WIDTH + 2)
    right = [8 * PARAMETERS + most + others] * UPDATES
    check(alive["stage 2"][2::4], right, "gradients in stage 2")
    bars["stage 1"]["gradients"], bars["stage 2"]["gradients"] = 8 * PARAMETERS, most

    ddp = DistributedDataParallel(theirs := network(device))
    optimizer, live = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.Adam), Live()
    for step in range(UPDATES):
        optimizer.zero_grad()
        on_my_share(ddp, *batch(step, device))
        with live:
            optimizer.step()
    check_training(without_state(theirs), without_state(alone[0]), "ZeroRedundancyOptimizer")
    dist.all_reduce(states := torch.tensor([live.now], device=device))
    check(int(states), 16 * PARAMETERS, "ZeroRedundancyOptimizer, states of all ranks")
    return of_a_step | {
        "a block": 8 * block,
        "gradients, stage 2": most,
        "in all": MemoryBars(bars),
    }


# %%
if __name__ == "__main__":
    run(zero, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# As many, 415,488. A ring's `all_reduce` is a `reduce_scatter` and an `all_gather`, and stage 1
# only lets the optimizer run between the two. So sharding the state costs no byte where the calls
# go around rings, for which these bytes are computed; what gloo's own calls send is in
# [which_one_when](../../notebooks/algorithms/which_one_when.ipynb).
#
# Stage 2 sends the same bytes, only earlier. It holds at most 134,656 bytes of gradients: 100,864
# of one block that is still whole, and the shards of the layers behind it.
#
# </details>

# %%
STEPS = [zero]

# %% [markdown]
# ## The proof
#
# The parameters of every rank must be those of one process, and its shard of Adam's state must be
# the same part of the state of one process, both to 1e-9. `check_samples` also compares which
# samples each rank has computed.
#
# PyTorch has stage 1 as [ZeroRedundancyOptimizer](../../docs/glossary.md#zeroredundancyoptimizer),
# which you use beside DDP. The step trains with it, too, and the model is equal.

# %% [markdown]
# ## Make it wrong
#
# Make one change, run the steps, read what the proof says, and undo it.
#
# 1. **No gathering.** In `train_sharded`, change `dist.all_gather_single(flat, shard.detach())` to
#    `pass`. It says `relative error`, because no rank sees what the others have updated.
# 2. **Gathered twice.** In `train_sharded`, change `dist.all_gather_single(flat, shard.detach())`
#    to `[dist.all_gather_single(flat, shard.detach()) for _ in range(2)]`. It says `should be
#    415488 [bytes sent in a step`. The model is right, because the second gathering writes what is
#    there already.
# 3. **The sum for the mean.** In `scatter_gradients`, change `gradients / dist.get_world_size()` to
#    `gradients`. It says `relative error`, and the error is only about 3e-05, because Adam rescales
#    every gradient.
# 4. **Gradients are kept.** In `scatter_gradients`, change `parameter.grad = None` to `pass`. It
#    says `relative error`, because `backward()` adds the gradients of the next step to them.
# 5. **Scattered late.** In `train_sharded`, change `if early else ()` to `if False else ()` and `if
#    not early else ()` to `if True else ()`. It says `[gradients in stage 2`, because the gradients
#    of all layers are in memory at once.

# %% [markdown]
# ## Write it yourself
#
# In your folder of [exercises](../../README.md#exercises):
#
# ```sh
# collectives practice zero_step
# ```

# %% [markdown]
# ## Read on
#
# The parameters themselves are still on every rank. Next lesson:
# [fully_sharded](../../notebooks/model_parallel/fully_sharded.ipynb), where they are sharded, too.
