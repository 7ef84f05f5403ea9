# %% [markdown]
"""
# reshard: weights from FSDP trainers to tensor parallel engines

The shards of the trainers become the slices of the engines, and only what an engine needs travels.

In [weight_update](../../notebooks/weight_update.ipynb), one rank had the whole model and sent it to
engines that wanted all of it. Your model is larger. The trainers hold rows of each weight, because
they use `fully_shard`. The engines are tensor parallel, so they need columns of some weights and
rows of others. No rank has what another one needs in one piece. In this lesson you first gather the
model and send it, and then compute who has what of whose slice, and move exactly that by one
`all_to_all_single`.

    python lessons/model_parallel/reshard.py
    torchrun --nproc-per-node 4 lessons/model_parallel/reshard.py
"""

# %%
from hashlib import sha256
from itertools import chain

from collectives import check, counting, needs, run
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from model import PARAMETERS, WIDTH, network
from origins import Origins, Part
from redistribute import share
from sliced import slice_of

# %% [markdown]
# ## The idea
#
# All ranks but the last are trainers, and the last half are engines. So of four ranks, 0, 1 and 2
# train, while 2 and 3 generate text. Rank 2 does both, as in jobs whose ranks take turns. Three
# trainers are on purpose: no weight has a number of rows that three divides, so what is easy to
# get wrong does go wrong.
#
# Of each parameter,
#
# - a trainer has the rows that `torch.chunk` gives it,
# - an engine needs what it had in
#   [tensor_parallel](../../notebooks/model_parallel/tensor_parallel.ipynb): rows of `query`, `key`,
#   `value` and `up`, columns of `out` and `down`, and all of everything else.


# %%
def roles():
    n = dist.get_world_size()
    return range(n - 1), range(n - n // 2, n)


def trained(device):
    """On a trainer, its shards; on every rank the shapes, and for the proof the whole model."""
    trainers, _ = roles()
    group = dist.new_group(list(trainers))
    model, whole = network(device), dict(network(device).named_parameters())
    if dist.get_rank() in trainers:
        mesh = DeviceMesh.from_group(group, device.type)
        for layer in model:
            fully_shard(layer, mesh=mesh)
    return dict(model.named_parameters()), whole


def check_slices(slices, whole, group, what):
    """On every engine, each slice is the one that the lesson tensor_parallel cuts."""
    wrong, every = [], [None] * dist.get_world_size()
    if dist.get_rank() in roles()[1]:
        right = {name: slice_of(name, one, group) for name, one in whole.items()}
        wrong = [name for name, one in right.items() if not torch.equal(slices[name], one)]
    dist.all_gather_object(every, wrong)
    check(every, [[]] * len(every), f"wrong slices of each rank, {what}")


# %% [markdown]
# ## Gathered first
#
# The simplest way needs no new idea. Each trainer calls `full_tensor`, which gathers a parameter
# from all trainers. Then rank 0 broadcasts it to the last rank, which is no trainer. Now every rank
# has the whole parameter, and the engines cut their slices out of it.

# %% [markdown]
# **Predict first.** The model has 276,992 bytes. Ranks 0 and 1 do not generate, so they need
# nothing that they do not have. Do they have to receive something nevertheless, so that the engines
# get their slices?


# %%
def held_rows(whole, f):
    """The bytes that f trainers gather if each one gives as many rows, rounded up."""
    return sum(8 * f * -(-len(one) // f) * one[0].numel() for one in whole.values())


@needs(ranks=3)  # one trainer has the whole model
def gathered_whole(rank, world_size, device):
    trainers, engines = roles()
    last, slices = world_size - 1, {}
    group, pair = dist.new_group(list(engines)), dist.new_group([0, last])
    parameters, whole = trained(device)
    with counting() as counts:
        for name, one in parameters.items():
            one = one.full_tensor() if rank in trainers else torch.empty_like(one)
            if rank in (0, last):
                dist.broadcast(one, src=0, group=pair)
            if rank in engines:
                slices[name] = slice_of(name, one, group)
    check_slices(slices, whole, group, "gathered first")

    each, f = len(whole), len(trainers)
    gathers = [each, held_rows(whole, f)] if rank in trainers else [0, 0]
    broadcasts = [each, 8 * PARAMETERS] if rank in (0, last) else [0, 0]
    check(list(counts["_c10d_functional.all_gather_single"]), gathers, "gathered")
    check(list(counts["c10d.broadcast"]), broadcasts, "broadcast")
    check(counts.total().calls, gathers[0] + broadcasts[0], "all calls, gathered first")
    found = {"trains": rank in trainers, "generates": rank in engines}
    return found | {
        "gathered": gathers[1],
        "broadcast": broadcasts[1],
        "calls": counts.total().calls,
    }


# %%
if __name__ == "__main__":
    run(gathered_whole, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Yes, everything that they lack: each of the three trainers gathers the whole model, and gets two
# thirds of it from the other two. The model is then broadcast once more. The 282504 bytes are a
# little more than the model has, because three does not divide 32 rows, and each rank must give
# equally many.
#
# </details>

# %% [markdown]
# ## Only what is needed
#
# A shard is a box of its parameter: some rows, and all columns. A slice is another box. What
# trainer r must send to engine e is where the two boxes meet, which is a box again: the later
# start and the earlier end, in each dimension. Nobody has to ask for it, because both sides can
# compute it from the shapes.
#
# So each rank makes a list of what it sends to each other rank, parameter by parameter, packs it
# into one [bucket](../../docs/glossary.md#bucket), and calls `all_to_all_single` once for the whole
# model. The parts have different lengths, so the call gets two lists: how many numbers come from
# each rank, and how many go there. Both sides must list the parameters in one order.

# %% [markdown]
# **Predict first.** `up` has 128 rows: trainers have rows of it, and so do engines. `down` has 128
# columns: trainers have rows, engines have columns. From how many of the three trainers does rank 2
# get a part of `up`, and of `down`?


# %%
def shard_boxes(shapes, rank):
    """By parameter, the rows that this rank has as a trainer."""
    trainers, _ = roles()
    f, found = len(trainers), {}
    for name, shape in shapes.items() if rank in trainers else ():
        found[name] = [share(shape[0], rank, f), *map(range, shape[1:])]
    return found


def cut_dimension(name, shape):
    layer = name.split(".")[1]
    if layer in ("query", "key", "value", "up"):
        return 0
    return 1 if layer in ("out", "down") and len(shape) == 2 else None


def slice_boxes(shapes, rank):
    """By parameter, the slice that this rank needs as an engine."""
    _, engines = roles()
    t, found = len(engines), {}
    for name, shape in shapes.items() if rank in engines else ():
        found[name], cut = [*map(range, shape)], cut_dimension(name, shape)
        if cut is not None:
            found[name][cut] = share(shape[cut], engines.index(rank), t)
    return found


def overlap(one, other):
    return [
        range(max(a.start, b.start), min(a.stop, b.stop)) for a, b in zip(one, other, strict=True)
    ]


def overlaps(shapes, sender, receiver):
    """By parameter, the box that the sender has and the receiver needs, unless it is empty."""
    shards, slices = shard_boxes(shapes, sender), slice_boxes(shapes, receiver)
    both = {name: overlap(box, slices[name]) for name, box in shards.items() if slices}
    return {name: box for name, box in both.items() if all(box)}


def views(tensors, held, boxes):
    """Of each tensor, which is one box of a parameter, a view of another box inside it."""
    found = []
    for name, box in boxes.items():
        both = zip(box, held[name], strict=True)
        found.append(
            tensors[name][tuple(slice(b.start - h.start, b.stop - h.start) for b, h in both)]
        )
    return found


def reshard(shapes, shards, slices):
    """Fill the slices of the engines from the shards of the trainers."""
    rank, ranks = dist.get_rank(), range(dist.get_world_size())
    have, need = shard_boxes(shapes, rank), slice_boxes(shapes, rank)
    leaving = [views(shards, have, overlaps(shapes, rank, other)) for other in ranks]
    arriving = [views(slices, need, overlaps(shapes, other, rank)) for other in ranks]
    sends, receives = (
        [sum(one.numel() for one in part) for part in parts] for parts in (leaving, arriving)
    )
    some = next(iter((shards or slices).values()))
    bucket = torch.cat([some.new_empty(0), *(one.flatten() for one in chain(*leaving))])
    arrived = some.new_empty(sum(receives))
    dist.all_to_all_single(arrived, bucket, receives, sends)
    parts = [*chain(*arriving)]
    for one, numbers in zip(parts, arrived.split([one.numel() for one in parts]), strict=True):
        one.copy_(numbers.view_as(one))


def empty_slices(whole):
    boxes = slice_boxes({name: one.shape for name, one in whole.items()}, dist.get_rank())
    return {name: whole[name].new_zeros([*map(len, box)]) for name, box in boxes.items()}


@needs(ranks=2)
def directly(rank, world_size, device):
    trainers, engines = roles()
    group, t = dist.new_group(list(engines)), len(engines)
    parameters, whole = trained(device)
    shapes = {name: tuple(one.shape) for name, one in whole.items()}
    shards = {name: one.to_local() for name, one in parameters.items() if rank in trainers}
    slices = empty_slices(whole)
    with counting() as counts, torch.no_grad():
        reshard(shapes, shards, slices)
    check_slices(slices, whole, group, "directly")

    # Every engine needs each row or column that is cut once, and all the others.
    often = {name: t if cut_dimension(name, one) is None else 1 for name, one in shapes.items()}
    sent = sum(often[name] * one.nbytes for name, one in shards.items())
    cut = 2 * (12 * WIDTH**2 + 4 * WIDTH)  # of two blocks, as in tensor_parallel
    received = 8 * (PARAMETERS - cut + cut // t) if rank in engines else 0
    check(dict(counts), {"c10d.all_to_all_single": (1, max(sent, received))}, "calls and bytes")
    parts = {name: [] for name in ("up", "down")}
    for sender in trainers:
        for name, box in overlaps(shapes, sender, rank).items():
            number, *layer = name.split(".")
            if number == "1" and layer[0] in parts and layer[1] == "weight":
                parts[layer[0]].append(Part(sender, *box))
    matrices = {name: shapes[f"1.{name}.weight"] for name in parts}
    origins = Origins(matrices, parts if rank in engines else {})
    return {"sent": sent, "received": received, "calls": counts.total().calls, "parts": origins}


# %%
if __name__ == "__main__":
    run(directly, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Of `up` from two, because its first half ends within the rows of rank 1, which therefore sends to
# both engines. Of `down` from all three, because each trainer has some rows of every column.
#
# </details>

# %% [markdown]
# Rank 0 now makes one call of 120,576 bytes, where it made 64 calls of 559,496 bytes before. That
# is still more than its shard has, because embeddings, norms and head are whole on both engines, so
# they leave twice.

# %% [markdown]
# ## Agree first
#
# No name and no shape has travelled, only numbers. So what if an engine lists the parameters in
# another order, for example sorted by name? The step lets the last rank do so, and then compares a
# digest of the names and shapes of each rank, which costs almost nothing.

# %% [markdown]
# **Predict first.** The last rank packs and unpacks in another order than all other ranks. Does
# `all_to_all_single` raise an error?


# %%
def digest(shapes):
    return sha256(repr([*shapes.items()]).encode()).hexdigest()[:8]


@needs(ranks=2)
def compared_plans(rank, world_size, device):
    trainers, engines = roles()
    group, last = dist.new_group(list(engines)), world_size - 1
    parameters, whole = trained(device)
    right = {name: tuple(one.shape) for name, one in whole.items()}
    shards = {name: one.to_local() for name, one in parameters.items() if rank in trainers}
    shapes = dict(sorted(right.items())) if rank == last else right
    slices = empty_slices(whole)
    with torch.no_grad():
        reshard(shapes, shards, slices)
    wrong = [
        name
        for name, one in slices.items()
        if not torch.equal(one, slice_of(name, whole[name], group))
    ]
    check(len(wrong) > 0, rank == last, "only the last rank has wrong slices")
    digests = [None] * world_size
    dist.all_gather_object(digests, digest(shapes))
    check([one == digests[0] for one in digests], [True] * last + [False], "equal digests")
    return {"wrong slices": len(wrong), "digest": digest(shapes)}


# %%
if __name__ == "__main__":
    run(compared_plans, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# No. Each pair of ranks agrees on the length of its part, because the order does not change a sum.
# So everything arrives, and 30 slices of rank 3 hold numbers of other parameters. The digest tells
# it, and in your program it can do so before the first number is sent.
#
# </details>

# %%
STEPS = [gathered_whole, directly, compared_plans]

# %% [markdown]
# ## The proof
#
# Every slice of every engine equals, number by number, the one that
# [sliced.py](../../lessons/model_parallel/sliced.py) cuts out of the whole model by `torch.chunk`.
# Calls and bytes are counted by torch's dispatcher. They must be those that follow from the number
# of parameters, and from what FSDP left on the rank.

# %% [markdown]
# ## Make it wrong
#
# Make one change, run the steps, read what the proof says, and undo it.
#
# 1. **Rounded down.** In `shard_boxes`, change `share(shape[0], rank, f)` to
#    `range(shape[0])[rank * (shape[0] // f) :][: shape[0] // f]`. It says
#    `[wrong slices of each rank, directly`. With two trainers it would be right, because two
#    divides every number of rows here.
# 2. **Columns as rows.** In `cut_dimension`, change `return 1 if layer` to `return 0 if layer`. It
#    says `[wrong slices of each rank, directly`.
# 3. **Unpacked in another order.** In `reshard`, change `chain(*arriving)` to
#    `chain(*reversed(arriving))`. It says `[wrong slices of each rank, directly`: all lengths fit.
# 4. **Engines change places.** In `slice_boxes`, change `engines.index(rank)` to
#    `engines[::-1].index(rank)`. It says `[wrong slices of each rank, directly`.
#
# ## Write it yourself
#
# In your folder of [exercises](../../README.md#exercises):
#
# ```sh
# collectives practice rows_to_columns
# ```

# %% [markdown]
# ## Pitfalls
#
# - Engines often fuse `query`, `key` and `value` into one weight, or pad the vocabulary. Then the
#   trainer's names are not the engine's, and the boxes need a table of which is which. SGLang and
#   vLLM get whole tensors and cut them by themselves ([Engines](../../docs/engines.md)).
# - Several copies of the engines get several times the bytes, all from the trainers. Move the
#   slices to one copy, and let it broadcast to the others.
# - One bucket is a second copy of what it carries. A large model goes in several.

# %% [markdown]
# ## On GPUs
#
# - The digests travel as objects, so set the device of each rank before `all_gather_object`
#   (`torch/distributed/distributed_c10d.py`: "it is the user's responsibility to ensure that this
#   is set so that each rank has an individual GPU").
# - When `all_to_all_single` has returned, the slices may still be on their way. What an engine
#   computes with them on the same stream waits for them by itself, because the call ["will block
#   the currently active CUDA stream until the operation is completed (but will not block the
#   CPU)"](https://docs.pytorch.org/docs/stable/distributed.html#synchronous-and-asynchronous-collective-operations).

# %% [markdown]
# ## Documented, not run
#
# - `redistribute` cannot do this, because trainers and engines have meshes of their own
#   (`torch/distributed/tensor/_redistribute.py`: "Cross device mesh comm not supported yet!").
# - vLLM moves weights from m trainers to n engines [by such a
#   plan](https://github.com/vllm-project/vllm/tree/main/vllm/distributed/weight_transfer).

# %% [markdown]
# ## Read on
#
# Whole layers or slices of layers: so far every rank has had a part of each layer. Next lesson:
# [pipeline](../../notebooks/model_parallel/pipeline.ipynb), in which a rank has some of the layers.
