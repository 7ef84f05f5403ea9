# %% [markdown]
"""
# choose: which parallelism to choose, DDP, FSDP, TP or PP

Begin with the trouble, take the method that is for it, and compute what the combination costs.

You have 64 GPUs and a model of 70e9 parameters, and five methods that all claim to make it fit.
Which do you take, and do you need more than one? In this lesson you choose among nine combinations
by their memory and their time. Then runs fill in a table to keep: which method is for which
trouble, what a rank then holds, and what it sends.

    python lessons/model_parallel/choose.py
    torchrun --nproc-per-node 4 lessons/model_parallel/choose.py
"""

# %%
from dataclasses import replace

from collectives import check, computed, needs, run
from torch.distributed.device_mesh import init_device_mesh

from collectives.pictures.memory_bars import MemoryBars
from costs import SMALL, Plan, Shape, costs, planned
from experts import experts
from fully_sharded import fully_sharded
from long_text import long_text
from measure import sent
from memory import measured, on_my_shard
from mesh import MICRO_BATCHES, NAMES, train_on
from one_process import UPDATES
from published import h100

# %% [markdown]
# ## The idea
#
# [memory](../../notebooks/model_parallel/memory.ipynb) lists what may not fit, and a method for
# each trouble. Each method cuts one thing and pays with messages, so take no more than you need.
# For many layers that do not fit there are two methods: fully sharded sends parameters, and a
# pipeline sends activations. Which is cheaper, `costs` computes.

# %% [markdown]
# ## 70e9 parameters on 64 GPUs
#
# The model has 86 blocks of 12 x 8,192² parameters, and a vocabulary of 32,000. A step has 1,024
# sequences of 4,096 tokens. The GPUs are H100s like those of Llama 3, with 80 GB each and 8 in a
# machine. What is the trouble?
#
# - The model does not fit: a parameter takes 2 bytes, its gradient 2, its state 12, and 16 x 70 =
#   1,120 GB.
# - A block fits: 2 x 12 x 8,192² bytes are 1.6 GB.
# - A sequence fits if blocks are computed again: 86 x 4,096 x 8,192 x 2 bytes are 5.8 GB.
#
# The step computes nine combinations. A name is data x pipeline x tensor, the stage of
# [ZeRO](../../docs/glossary.md#zero), and in parentheses the sequences in a
# [micro-batch](../../docs/glossary.md#micro-batch). A list has the GB of the fullest GPU, the GB
# that it sends in a step to its data group and to its tensor group, and a lower bound of the
# seconds of a step, twice: with 50 GB a second from each GPU to other machines, as for Llama 3, and
# with 6.25 GB, as for BLOOM.

# %% [markdown]
# **Predict first.** Which combinations do not fit? Of the others, which one do you choose, and why?


# %%
@computed
def seventy_billion(rank, world_size, device):
    shape, machine, found, bars = Shape(86, 8192, 4096, 32_000, 64), h100(64), {}, {}
    for d, p, t, zero, pieces in (
        *((64, 1, 1, 0, 1), (64, 1, 1, 1, 1), (64, 1, 1, 3, 1), (64, 1, 1, 3, 4)),
        *((8, 1, 8, 3, 4), (8, 1, 8, 1, 1), (8, 2, 4, 1, 1), (8, 4, 2, 1, 1), (8, 8, 1, 1, 1)),
    ):
        plan = Plan(d, p, t, 1024, 1024 // (d * pieces), "1F1B", recompute=True, zero=zero)
        held, sends, _, seconds = planned(shape, plan, machine)
        slow = planned(shape, plan, replace(machine, outside=6.25e9)).seconds
        # Layers take longer than what is computed with them: 3 x 2 bytes for 4 x 2 operations.
        links = sum(one < 8 for one in range(0, 64, p * t))  # from a machine, of a data group
        waits = zero == 3 and 6 * machine.peak > 8 * 4096 * pieces * links * 6.25e9
        check(slow > seconds, waits, f"slow links, {d}x{p}x{t} ZeRO {zero} ({pieces})")
        gigabytes, name = round(sum(held.values()) / 1e9), f"{d}x{p}x{t} ZeRO {zero} ({pieces})"
        of_groups = [round(sends[one] / 1e9) for one in ("data", "tensor")]
        found[name] = [gigabytes, *of_groups, round(seconds, 1), round(slow, 1)]
        if gigabytes <= 80:
            bars[name] = held
    check(list(bars), list(found)[2:], "what fits")
    fastest = min(bars, key=lambda name: found[name][::-1])
    check(fastest, "64x1x1 ZeRO 3 (4)", "the fastest that fits, over slow links")
    drawn = {f"{name}, {found[name][3]} s": one for name, one in bars.items()}
    names = "A name: data x pipeline x tensor, ZeRO's stage, (sequences of a micro-batch), seconds."
    return found | {"what fits": MemoryBars(drawn, "the fullest GPU", 80 * 10**9, names)}


# %%
if __name__ == "__main__":
    run(seventy_billion, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Copies do not fit, with 1124 GB, and neither does stage 1 of ZeRO, with 299 GB. Choose the fully
# sharded model, which is stage 3, with four sequences in a micro-batch:
#
# - It fits, with 45 GB.
# - No GPU waits, because there is no bubble and no tensor group. A step takes 39.9 seconds at the
#   peak.
# - Even slow links are enough, if layers travel while others are computed. A machine has 8 GPUs of
#   the group, whose [rings](../../notebooks/model_parallel/hybrid.ipynb) leave it by 8 links: 1650
#   / 8 / 6.25 = 33 seconds.
#
# With one sequence it needs only 24 GB, but each micro-batch gathers all layers, which takes 132.0
# seconds over slow links. The pipeline, with its bubble, takes 42.1 seconds, and 8 tensor ranks,
# which wait in each block, 57.1.
#
# </details>

# %% [markdown]
# ### When to combine
#
# Why did Llama 3 need more than a fully sharded model? Each data parallel rank needs a sequence,
# and Llama 3 had 8,192 GPUs and 2,048 sequences in a step, so 6,144 GPUs would have had none. So
# begin with fully sharded, and combine it:
#
# 1. with tensor parallel inside a machine, if a layer does not fit, or if there are fewer sequences
#    than GPUs,
# 2. with a pipeline across machines, if that is not enough,
# 3. with ring attention or [Ulysses](../../docs/glossary.md#ulysses), if a single sequence is too
#    long.
#
# If two combinations come out close, measure both.

# %% [markdown]
# ## The table
#
# What does each method do on its own? Each one trains the small model on all ranks. A list has the
# bytes that a rank holds, and those that it sends in a step. For experts it has the bytes in one
# process and on a rank, both without activations, and those of tokens that the rank sends.

# %% [markdown]
# **Predict first.** Copies of the model hold 1,744,024 bytes on each rank, and send 415,488. Which
# methods hold less? Which one sends less?


# %%
@needs(ranks=4, backend="gloo")
def troubles(rank, world_size, device):
    n = world_size
    _, alone, _ = measured(device)
    _, copy, counts = measured(device, on_my_shard)
    whole, ring, mixture = (step(rank, n, device) for step in (fully_sharded, long_text, experts))
    held = {"copies": copy, "fully sharded": whole["in all"].bars["stage 3"]}
    sends = {"copies": sent(counts, n) // UPDATES, "fully sharded": whole["bytes sent"]}
    plans = {"copies": Plan(n), "fully sharded": Plan(n, zero=3)}
    for name, shape in {"tensor": (1, 1, n), "pipeline": (n // 4, 4, 1)}.items():
        counted, _ = train_on(init_device_mesh(device.type, shape, mesh_dim_names=NAMES), device)
        held[name] = {kind: counted[kind] for kind in alone}
        sends[name] = sum(counted[one] for one in NAMES)
        plans[name] = Plan(*shape, micro_batches=MICRO_BATCHES)
    for name, plan in plans.items():
        right = costs(SMALL, plan, rank % plan.pipeline)
        check(sends[name], sum(right[one] for one in NAMES), f"bytes sent, {name}")

    held["ring"] = copy | {"activations": ring["activations"]}
    sends["ring"] = ring["bytes of blocks sent"] + sends["copies"]  # and the gradients
    found = {name: [sum(held[name].values()), sends[name]] for name in held}
    both = [sum(one.values()) for one in mixture["in all"].bars.values()]
    found["experts"] = [*both, mixture["bytes sent"]]
    return {"one process": sum(alone.values())} | found


# %%
if __name__ == "__main__":
    run(troubles, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# | trouble | method | cuts | the fullest rank holds | it sends |
# |---|---|---|---|---|
# | the model does not fit | fully_sharded | all but activations | 695,328 | 623,232 |
# | a layer does not fit | tensor_parallel | weights of blocks | 1,851,408 | 786,432 |
# | too many layers | pipeline | the list of layers | 1,476,608 | 131,072 |
# | the text is too long | long_text | each text | 1,744,008 | 1,070,848 |
# | too many experts | experts | the experts | 1,659,048 of 4,866,408 | 97,280 |
#
# Fully sharded and the pipeline hold less than copies, and the pipeline sends less. Tensor ranks
# hold more here, because the model is small and each of them has the whole batch. If the vocabulary
# is too large, see [vocabulary](../../notebooks/model_parallel/vocabulary.ipynb).
#
# </details>

# %%
STEPS = [seventy_billion, troubles]

# %% [markdown]
# ## The proof
#
# Each method trains the model of one process, to 1e-9, as its lesson proves. The bytes that it
# sends are those that `costs` computes.

# %% [markdown]
# ## Make it wrong
#
# Make one change, run the steps, read what the proof says, and undo it.
#
# 1. **All activations are kept.** In `seventy_billion`, change `recompute=True` to
#    `recompute=False`. It says `[what fits`.
# 2. **Another plan.** In `troubles`, change `Plan(n, zero=3)` to `Plan(n)`. It says
#    `[bytes sent, fully sharded`.

# %% [markdown]
# ## Read on
#
# This was the last lesson on large models. Back to [all chapters](../../README.md).
