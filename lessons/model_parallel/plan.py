# %% [markdown]
"""
# plan: memory and time of a large training, computed before

Memory, bytes and time of a large training follow from shapes, before anyone starts it.

Before anybody lends you 1,024 GPUs for a month, you have to say what fits into their memory, what
travels between them, and how long a step takes. You cannot try it, but you can compute it, if you
can trust the formula. In this lesson you first compare a formula with what small runs count, for
each mesh, and then apply it to four published trainings. At the end you can plan one of your own.

    python lessons/model_parallel/plan.py
    torchrun --nproc-per-node 4 lessons/model_parallel/plan.py
"""

# %%
import warnings
from functools import partial
from itertools import pairwise, product
from math import prod

from collectives import check, computed, counting, needs, run
import torch
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import attention
from torch.utils.flop_counter import FlopCounterMode

from collectives.pictures.memory_bars import MemoryBars
from costs import BFLOAT16, SMALL, Plan, costs, planned
from measure import sent
from memory import by_hand
from mesh import MICRO_BATCHES, NAMES, on_the_mesh, stage_of, train_on
from model import Block, network
from one_process import UPDATES, backward, train
from published import FASTER_FIRST, MEASURED, RUNS, SHARDS, a100

# %% [markdown]
# ## The idea
#
# What a large model costs can be learned from a small one, if the same formula holds for both.
# `costs` in [costs.py](../../lessons/model_parallel/costs.py) computes from shapes what a rank
# holds, sends and computes in a step, on a [mesh](../../docs/glossary.md#mesh) of data x pipeline x
# tensor ranks. First it must equal what small runs count, on every rank: every number on a mesh,
# and for a fully sharded model the bytes sent and what a rank holds from step to step.

# %% [markdown]
# ## Formulas and counts
#
# The ranks train on each mesh of [mesh](../../notebooks/model_parallel/mesh.ipynb), once with all
# activations, and once with blocks that are computed again.

# %% [markdown]
# **Predict first.** A list has the bytes that the tensor group sends, and the operations, both with
# blocks that are computed again. In mesh, the tensor group of 2 x 1 x 2 sent 262144 bytes. And in
# [fully_sharded](../../notebooks/model_parallel/fully_sharded.ipynb), a rank sent 623,232 bytes.
# Here its share comes in two [micro-batches](../../docs/glossary.md#micro-batch). Which of the two
# numbers grows?


# %%
class Again(torch.nn.Sequential):
    def forward(self, x):
        for layer in self:
            x = by_hand(layer, x) if isinstance(layer, Block) else layer(x)
        return x


def in_micro_batches(model, letters, following):
    rank, n = dist.get_rank(), dist.get_world_size()
    m = min(MICRO_BATCHES, 8 // n)
    for x, target in zip(letters[rank::n].chunk(m), following[rank::n].chunk(m), strict=True):
        backward(model, x, target)


@needs(ranks=4, backend="gloo")
def plan_is_counted(rank, world_size, device):
    found = {}
    for shape, kind in product(product((1, 2), repeat=3), (torch.nn.Sequential, Again)):
        if prod(shape) == world_size:
            grid = init_device_mesh(device.type, shape, mesh_dim_names=NAMES)
            counted, _ = train_on(grid, device, kind)
            stage = stage_of(network(device), grid)
            stage.__class__ = kind
            with attention.sdpa_kernel(attention.SDPBackend.MATH):
                with FlopCounterMode(display=False) as flops:
                    train(stage, device, partial(on_the_mesh, grid), steps=1)
            counted["operations"] = flops.get_total_flops()
            plan = Plan(*shape, micro_batches=MICRO_BATCHES, recompute=kind is Again)
            right = costs(SMALL, plan, grid.get_local_rank("pipeline"))
            check(counted, counted | right, f"what a step costs, {shape}")
            # At last with blocks that are computed again.
            found[" x ".join(map(str, shape))] = [counted["tensor"], counted["operations"]]

    warnings.filterwarnings("ignore", "FSDP2-wrapped module")  # as in fully_sharded.py
    model = network(device)
    for layer in (*model, model):
        fully_shard(layer)
    with counting() as counts:
        model, optimizer = train(model, device, in_micro_batches)
    plan = Plan(world_size, micro_batches=min(MICRO_BATCHES, 8 // world_size), zero=3)
    sends, right = sent(counts, world_size) // UPDATES, costs(SMALL, plan)
    check(sends, right["data"], "fully sharded, bytes sent")
    parameters = sum(one.to_local().nbytes for one in model.parameters())
    check(parameters, right["parameters"], "fully sharded, parameters")
    means = [state[key] for state in optimizer.state.values() for key in ("exp_avg", "exp_avg_sq")]
    state = sum(one.to_local().nbytes for one in means)
    check(state, right["optimizer state"], "fully sharded, optimizer state")
    return found | {"fully sharded": sends}


# %%
if __name__ == "__main__":
    run(plan_is_counted, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Both. The tensor group sends 393216 bytes, half as much again, because to compute a block again
# takes two more calls. And the fully sharded rank sends 1246464 bytes, twice as many, because each
# micro-batch gathers all layers anew.
#
# </details>

# %% [markdown]
# ## Published trainings
#
# The formula holds, so use it where you cannot run anything.
# [published.py](../../lessons/model_parallel/published.py) has four trainings, with the places in
# their papers: [BLOOM](https://arxiv.org/abs/2211.05100), two of
# [Megatron-LM](https://arxiv.org/abs/2104.04473), and [Llama 3](https://arxiv.org/abs/2407.21783).
# A parameter and its gradient take 2 bytes each, and Adam's state 12: a copy in float32, and two
# means. `planned` in costs.py gives a lower bound of the time for programs like ours:
#
# - A GPU computes at its peak, 989e12 operations a second for an H100, and waits for its tensor
#   group and in the bubble.
# - Gradients and gathered layers travel meanwhile, so they count only if they take longer.
#
# Rank r prints training r: our number of parameters and the reported one, the GB that the fullest
# GPU holds and its activations, the GB that a GPU sends for data, pipeline and tensor, and the
# seconds of a step, which are the bound and what follows from the reported speed. Each GPU has 80
# GB.

# %% [markdown]
# **Predict first.** Which of the four trainings could not have run with our programs?


# %%
@computed
def published_runs(rank, world_size, device):
    rows, bars = [], {}
    for name, (shape, batch, gpus, seconds, share) in MEASURED.items():
        computing = planned(shape, Plan(batch=batch), a100(gpus, 25e9)).computing
        check(abs(computing / seconds - share) < 0.003, True, f"part of the peak, {name}")
    for name, (shape, batch, meshes) in FASTER_FIRST.items():
        plans = [Plan(*one, batch, batch // one[0], "1F1B", recompute=True) for one in meshes]
        took = [planned(shape, one, a100(64, 25e9)).seconds for one in plans]
        check([a < b for a, b in pairwise(took)], [True] * (len(took) - 1), name)
    for zero, gigabytes in SHARDS.items():
        one = planned(SMALL, Plan(64, batch=64, zero=zero), a100(64, 25e9)).held
        held = sum(one[kind] for kind in BFLOAT16) / (costs(SMALL, Plan())["parameters"] / 8) * 7.5
        check(abs(held - gigabytes) < 0.1, True, f"GB with stage {zero}")
    for name, (shape, plan, machine, reported, speed) in RUNS.items():
        blocks, w, length, letters, _ = shape
        again = costs(shape, Plan(batch=plan.batch, recompute=True))["operations"]
        formula = 96 * w * blocks + 16 * length * blocks + 6 * letters  # its equation 3
        check(again, plan.batch * length * w * formula, f"operations of {name}")
        ours, one = costs(shape, Plan())["parameters"] / 8, planned(shape, plan, machine)
        if name == "Llama 3":  # its second stage holds 15 micro-batches of 8 blocks
            kept = 15 * 8 * length * w * (8 + 24 / plan.tensor)
            check(round(one.held["activations"] / kept, 2), 1.0, f"activations of {name}")
        took = one.computing * machine.peak / speed
        check([abs(ours / reported - 1) < 0.03, one.seconds < took], [True, True], name)
        bars[name] = one.held
        held = [round(x / 1e9) for x in (sum(one.held.values()), one.held["activations"])]
        row = {"run": name, "1e9 parameters": [round(x / 1e9, 1) for x in (ours, reported)]}
        row |= {"GB held": held, "GB sent": [round(x / 1e9) for x in one.sent.values()]}
        rows.append(row | {"seconds": [round(one.seconds, 1), round(took, 1)]})
    return rows[rank % len(rows)] | {"all": MemoryBars(bars, "the fullest GPU", limit=80 * 10**9)}


# %%
if __name__ == "__main__":
    run(published_runs, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Llama 3, because 184 GB are more than 80. 177 of them are activations.
#
# </details>

# %% [markdown]
# ### Differences
#
# But Llama 3 did run. Its program, and those of the others, differ from ours, mostly in these
# points:
#
# - **Activations of Llama 3.** In a block of width W, each of our 8 tensor ranks keeps 4 W + 12 W /
#   8 = 5.5 W for a token, but those of Llama 3 cut all that they keep. If SiLU is computed again, a
#   token keeps 15.9 W on all 8 ranks together: 177 x 15.9 / 8 / 5.5 = 64 GB, which fit beside the
#   other 7.
# - **Parameters.** A block of Llama 3 has other layers, and BLOOM has one matrix for embedding and
#   head, so our numbers of parameters differ from theirs by less than 3 %.
# - **Memory of BLOOM.** A GPU used
#   [60 GB](https://bigscience.notion.site/BigScience-176B-Model-ad073ca07cdf479398d5f95d88e218c4).
#   Our 41 leave out what calls, attention and the allocator need.
#
# A step took 12.6 / 9.6 = 1.3 to 100.5 / 55.2 = 1.8 times the bound, because no program stays at
# the peak. For a plan of your own, expect such a factor.

# %%
STEPS = [plan_is_counted, published_runs]

# %% [markdown]
# ## The proof
#
# Every count of a rank equals `costs`, on each mesh: bytes of parameters, gradients, Adam's state
# and activations, bytes sent in each dimension, and operations. The trainings are those of one
# process, to 1e-9. `planned` agrees with what is published: formulas for operations and for
# [activations](https://arxiv.org/abs/2205.05198), measured parts of the peak, which of two plans is
# faster, bytes by stage of ZeRO.

# %% [markdown]
# ## Make it wrong
#
# Make one change, run the steps, read what the proof says, and undo it.
#
# 1. **Nothing is computed again.** In `forward`, change
#    `by_hand(layer, x) if isinstance(layer, Block) else layer(x)` to `layer(x)`. It says
#    `[what a step costs, (1, 2, 2)`. The model is right.
# 2. **One micro-batch.** In `in_micro_batches`, change `min(MICRO_BATCHES, 8 // n)` to `1`. It says
#    `should be 1246464 [fully sharded, bytes sent`.
# 3. **The paper without computing again.** In `published_runs`, change `96 * w` to `72 * w`. It
#    says `[operations of BLOOM`.

# %% [markdown]
# ## Read on
#
# These four had chosen already. Next lesson:
# [choose](../../notebooks/model_parallel/choose.ipynb), where you do.
