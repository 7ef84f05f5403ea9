# %% [markdown]
"""
# hybrid: prefetch and hybrid sharding, FSDP with replicas

`fully_shard` gathers some layers ahead, and its mesh decides how far their bytes travel.

Your fully sharded training is fast on one machine and slow on two. Two things may be wrong: a rank
may wait for each layer before it computes, or every layer travels through the cable between the
machines. In this lesson you count how far ahead `fully_shard` gathers, and shard the model inside
each machine only, so that less is sent from machine to machine. You also see what that costs.

    python lessons/model_parallel/hybrid.py
    torchrun --nproc-per-node 4 lessons/model_parallel/hybrid.py
"""

# %%
import warnings
from itertools import pairwise

from collectives import check, check_samples, check_training, counting, needs, run
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from collectives.pictures.cables import Cables, Wiring
from measure import Sends
from model import PARAMETERS, batch, network
from one_process import UPDATES, backward, train, without_state
from whole_layers import WholeLayers


# %%
def sharded(model, mesh=None):
    # The head returns a view. FSDP2 warns of changes to it in place, and nothing here makes one.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module")
    for layer in model:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def on_my_share(model, letters, following):
    rank, n = dist.get_rank(), dist.get_world_size()
    backward(model, letters[rank::n], following[rank::n])


# %% [markdown]
# ## Ahead
#
# In [fully_sharded](../../notebooks/model_parallel/fully_sharded.ipynb), a step gathers four layers
# in the forward pass, and the same four in the backward pass. A layer that is asked for early can
# arrive while another one is computed. So this step notes how many calls of `all_gather` have been
# made when a layer begins its forward pass, and when it ends its backward pass. From these numbers
# `ahead` computes how far each pass is ahead. Then the step asks for more: with
# `set_modules_to_forward_prefetch`, a layer asks for another one, too, before it is computed.

# %% [markdown]
# **Predict first.** By default, which of the two passes has the next layer gathered ahead?


# %%
def gathered_by_then(model, device):
    """The number of all_gathers until each layer begins forward, and until it ends backward."""
    # The first layer's input has no gradient. That is no problem for this hook.
    warnings.filterwarnings("ignore", "Full backward hook is firing")
    found = {"forward": [], "backward": []}
    with counting() as counts:
        for layer in model:
            for kind, hook in (
                ("forward", layer.register_forward_pre_hook),
                ("backward", layer.register_full_backward_hook),
            ):
                hook(lambda *_, found=found[kind]: found.append(counts[GATHER].calls))
        on_my_share(model, *batch(0, device))
    return found


GATHER = "c10d.all_gather_single"


def ahead(gathered, layers):
    """How many layers each pass is ahead at its first layer, and so at all others."""
    found = {}
    for kind, earlier in (("forward", 0), ("backward", layers)):
        found[kind] = gathered[kind][0] - earlier - 1
        steady = [earlier + min(k + found[kind], layers) for k in range(1, layers + 1)]
        check(gathered[kind], steady, f"layers gathered, {kind}")
    return found


@needs(ranks=2)
def gathers_ahead(rank, world_size, device):
    by_default = gathered_by_then(sharded(network(device)), device)
    model = sharded(network(device))
    for layer, following in pairwise(model):
        layer.set_modules_to_forward_prefetch([following])
    asked_for = gathered_by_then(model, device)

    check(sum(ahead(by_default, len(model)).values()), 1, "one pass is one layer ahead")
    check(set(ahead(asked_for, len(model)).values()), {1}, "both are, if asked for")
    counts = {"by default": by_default, "asked for": asked_for}
    slots = WholeLayers({name: one["forward"] + one["backward"] for name, one in counts.items()})
    return by_default | {"forward, asked for": asked_for["forward"], "slots": slots}


# %%
if __name__ == "__main__":
    run(gathers_ahead, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# The backward pass. When the last layer ends it, 6 calls have been made: 4 in the forward pass, one
# for this layer and one for the layer before it. `fully_shard` knows which layer that is, because
# the order is that of the forward pass, reversed. In the forward pass it does not know which layer
# follows, so it gathers each layer just before it is computed.
#
# </details>

# %% [markdown]
# ## Shards inside a machine
#
# Gathering ahead hides the time that a layer travels, but not if the cable is too slow. Suppose
# that two machines have half of the ranks each. If all ranks share one model, each layer travels
# through the cable between the machines three times. [Hybrid
# FSDP](../../docs/glossary.md#hybrid-fsdp), or HSDP, needs a mesh with two dimensions. Each machine
# has all shards, so `all_gather` and `reduce_scatter` stay inside, and only the ranks with the same
# shard add up its gradients by `all_reduce`, from machine to machine.

# %% [markdown]
# **Predict first.** HSDP sends less from machine to machine. What does it cost?


# %%
def train_on(mesh, world_size, device):
    """Train and prove it: what this rank sends in a step, by the ranks of a group and receiver."""
    model = sharded(network(device), mesh)
    with Sends() as sends:
        trained = train(model, device, on_my_share)
    whole = network(device)
    for mine, theirs in zip(whole.parameters(), model.parameters(), strict=True):
        mine.data = theirs.full_tensor().detach()
    expected = train(network(device), device)
    check_samples(trained, expected, f"{mesh.mesh_dim_names}")
    check_training(without_state(whole), without_state(expected[0]), f"{mesh.mesh_dim_names}")
    shards = sum(one.to_local().nbytes for one in model.parameters())
    return sends, shards


@needs(ranks=4, backend="gloo")
def sharded_inside(rank, world_size, device):
    half, panels, held = world_size // 2, [], []
    shapes = {"FSDP": {"shard": world_size}, "HSDP": {"replicate": 2, "shard": half}}
    for name, shape in shapes.items():
        names = tuple(shape)
        mesh = init_device_mesh(device.type, tuple(shape.values()), mesh_dim_names=names)
        sends, shards = train_on(mesh, world_size, device)
        held.append(shards)
        n = shape["shard"]
        check(shards, 8 * PARAMETERS // n, f"bytes of the shards, {name}")
        group = tuple(dist.get_process_group_ranks(mesh.get_group("shard")))
        right = {group: 12}  # 8 times all_gather and 4 times reduce_scatter
        if name == "HSDP":
            right[tuple(dist.get_process_group_ranks(mesh.get_group("replicate")))] = 4
        calls = {ranks: count // UPDATES for ranks, count in sends.calls.items()}
        check(calls, right, f"calls of a step, {name}")
        every = [None] * world_size
        dist.all_gather_object(every, sends.bytes)
        links = {(a, b): size for a, sent in enumerate(every) for (_, b), size in sent.items()}
        cable = sum(size for (a, b), size in links.items() if a < half <= b) // UPDATES
        machines = range(half), range(half, world_size)
        panels.append(Wiring(name, machines, list(links), cable / 1e6))
    flat = 3 * (world_size - 1) * 8 * PARAMETERS // world_size
    cables = [round(1e6 * one.megabytes) for one in panels]
    check(cables, [flat, 8 * PARAMETERS], "bytes from machine to machine")
    return {"held, FSDP": held[0], "held, HSDP": held[1], "sent": Cables([], panels)}


# %%
if __name__ == "__main__":
    run(sharded_inside, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Memory: a rank holds 138496 bytes of parameters in place of 69248, twice as many, because only the
# ranks of one machine share them. In return 277 kB go through the cable in place of 623 kB.
#
# </details>

# %%
STEPS = [gathers_ahead, sharded_inside]

# %% [markdown]
# ## The proof
#
# The model on each mesh equals that of one process, to 1e-9. The calls are counted by group, and
# the bytes follow from the number of parameters.

# %% [markdown]
# ## Make it wrong
#
# Make one change, run the steps, read what the proof says, and undo it.
#
# 1. **No layer ahead.** In `gathers_ahead`, change `[following]` to `[]`. It says `[both are, if
#    asked for`.
# 2. **The other order.** In `sharded_inside`, change `{"replicate": 2, "shard": half}` to
#    `{"shard": half, "replicate": 2}`. It says `[calls of a step, HSDP`.
# 3. **The same text on all ranks.** In `on_my_share`, change `letters[rank::n], following[rank::n]`
#    to `letters[:1], following[:1]`. It says `are computed by another rank`.

# %% [markdown]
# ## On GPUs
#
# - Calls do not block there. A rank makes the call for the next layer while the GPU computes, so
#   the default order of the forward pass overlaps as well
#   ([`set_modules_to_forward_prefetch`](https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html)).
# - NCCL makes several rings, [each through another network
#   card](https://github.com/NVIDIA/nccl/issues/601). If each of the 8 GPUs of a machine has one, a
#   group of all GPUs sends to the next machine through 8 links at once.

# %% [markdown]
# ## Read on
#
# `fully_shard` has made a DTensor of every parameter. What else can a DTensor be, and when does it
# communicate? Next lesson: [redistribute](../../notebooks/model_parallel/redistribute.ipynb).
