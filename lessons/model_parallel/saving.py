# %% [markdown]
"""
# saving: clip and save an FSDP model, sharded checkpoints

A sharded model needs all ranks, also to clip its gradients and to save a checkpoint.

Your sharded training runs, and then three habits from one GPU fail. The optimizer changes nothing,
clipping scales every rank by another factor, and the line that saves on rank 0 hangs. Only the last
one is noticed at once. In this lesson you see why each fails, and what to write instead. At its end
you save on four ranks what two ranks load.

    python lessons/model_parallel/saving.py
    torchrun --nproc-per-node 4 lessons/model_parallel/saving.py
"""

# %%
import os
from tempfile import TemporaryDirectory

from collectives import check, check_samples, check_training, counting, needs, note_calls, run
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grad_norm_, get_total_norm

from hybrid import sharded
from slices import Slice, Slices
from model import batch, network
from one_process import backward, train

# %% [markdown]
# ## The optimizer
#
# In [fully_sharded](../../notebooks/model_parallel/fully_sharded.ipynb), `fully_shard` replaces the
# parameters by [DTensors](../../docs/glossary.md#dtensor), of which each rank holds a shard. When
# do you make the optimizer, then? The step makes one before `fully_shard` and one after it, and
# counts the parameters that one update changes.

# %% [markdown]
# **Predict first.** What does the optimizer do that was made before `fully_shard`?


# %%
def gathered(tensor):
    return tensor.full_tensor().detach() if isinstance(tensor, DTensor) else tensor


def whole(model, optimizer, device):
    """A copy that is not sharded, and its optimizer. All ranks must call it."""
    copy = network(device)
    copied = torch.optim.Adam(copy.parameters())
    for mine, theirs in zip(copy.parameters(), model.parameters(), strict=True):
        mine.data = gathered(theirs)
        copied.state[mine] = {key: gathered(one) for key, one in optimizer.state[theirs].items()}
    return copy, copied


@needs(ranks=2)
def when_to_make_the_optimizer(rank, world_size, device):
    my_share, changed = [one[rank::world_size] for one in batch(0, device)], {}
    for when in ("before", "after"):
        model = network(device)
        early = torch.optim.Adam(model.parameters())
        sharded(model)
        optimizer = early if when == "before" else torch.optim.Adam(model.parameters())
        backward(model, *my_share)
        optimizer.step()
        now, _ = whole(model, optimizer, device)
        pairs = zip(network(device).parameters(), now.parameters(), strict=True)
        changed[when] = sum(not torch.equal(start, end) for start, end in pairs)
    check(changed, {"before": 0, "after": len([*model.parameters()])}, "changed parameters")
    return changed


# %%
if __name__ == "__main__":
    run(when_to_make_the_optimizer, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 0 parameters change, and there is no error, because the optimizer has the old parameters. They get
# no gradients, and Adam skips those.
#
# </details>

# %% [markdown]
# ## The norm of all ranks
#
# Before it updates, a training often clips: if the norm of the gradients is above a limit, it
# scales all of them by one factor. Every rank must use the same factor, so the ranks add up the
# squares of their shards. `clip_grad_norm_` of PyTorch does so if the gradients are DTensors of one
# mesh. If a model is [tensor parallel](../../notebooks/model_parallel/tensor_parallel.ipynb) as
# well, the parameters that are not cut have another mesh, and the call raises
# `must have the same mesh`. So `clip_by_mesh` computes the norm of each mesh, and then the root of
# the sum of their squares.

# %% [markdown]
# **Predict first.** The limit is 0.7. What goes wrong if each rank uses the norm of its shards?

# %%
LIMIT = 0.7


def norm_of_my_shards(model):
    return torch.cat([one.grad.to_local().flatten() for one in model.parameters()]).norm()


def clip_by_hand(model):
    squares = norm_of_my_shards(model) ** 2
    dist.all_reduce(squares)
    for one in model.parameters():  # PyTorch adds 1e-6, too
        one.grad.to_local().mul_(min(1.0, LIMIT / (squares.sqrt() + 1e-6)))
    return squares.sqrt()


def clip_by_pytorch(model):
    return gathered(clip_grad_norm_(model.parameters(), LIMIT))


def clip_by_mesh(model):
    meshes = {}
    for one in model.parameters():
        meshes.setdefault(one.device_mesh, []).append(one.grad)
    norm = torch.stack([gathered(get_total_norm(some)) for some in meshes.values()]).norm()
    for one in model.parameters():
        one.grad.mul_(min(1.0, LIMIT / (norm.item() + 1e-6)))
    return norm


def clipped(clip, norms, rank=0, n=1):
    def on_my_share(model, letters, following):
        backward(model, letters[rank::n], following[rank::n])
        norms.append(clip(model))

    return on_my_share


@needs(ranks=2)
def clip(rank, world_size, device):
    expected = train(network(device), device, clipped(clip_by_pytorch, norms := []))
    for one in (clip_by_hand, clip_by_pytorch, clip_by_mesh):
        mine = []
        trained = train(sharded(network(device)), device, clipped(one, mine, rank, world_size))
        check_samples(trained, expected, one.__name__)
        check_training(whole(*trained, device), expected, one.__name__)
        check(torch.stack(mine), torch.stack(norms), f"norms, {one.__name__}", rtol=1e-9)
    calls = note_calls()  # what this rank calls from here on
    clip_by_hand(trained[0])
    sums = [(call.name, call.tensors[0].numel) for call in calls]
    check(sums, [("all_reduce", 1)], "calls of clip_by_hand, and their numbers")
    on_my_share = clipped(norm_of_my_shards, shards := [], rank, world_size)
    train(sharded(network(device)), device, on_my_share, steps=1)
    total = shards[0] ** 2
    dist.all_reduce(total)
    check(total, norms[0] ** 2, "squares of all shards", rtol=1e-9)
    check([norm.item() > LIMIT for norm in norms], [True, False, True], "norms above the limit")
    return {"my shards": round(shards[0].item(), 3), "all": round(norms[0].item(), 3)}


# %%
if __name__ == "__main__":
    run(clip, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Each rank scales by a factor of its own, or not at all if its norm is below the limit. The
# gradient of the model then points in another direction, and there is no error.
#
# </details>

# %% [markdown]
# ## From four ranks to two
#
# A checkpoint should not depend on the number of ranks, because tomorrow you may get fewer GPUs.
# With `torch.distributed.checkpoint`, each rank writes its shards into a file of its own, and one
# more file says what is where. To load it, shard the model as you like, and each rank reads the
# parts that it needs. `dcp.load` writes into the tensors of the new model and its optimizer, and
# `set_state_dict` sets the rest, such as the learning rate.
#
# In the step all ranks train for two updates and save. Then each half of the ranks loads the
# checkpoint into a new model, and trains for two more updates.

# %% [markdown]
# **Predict first.** How many files do four ranks write? Another program calls `whole` on rank 0
# alone, and saves the copy. What happens?


# %%
def states(model, optimizer):
    return dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))


@needs(ranks=4)
def four_to_two(rank, world_size, device):
    expected = train(network(device), device, clipped(clip_by_pytorch, []), steps=4)
    n = world_size // 2
    half = init_device_mesh(device.type, (2, n), mesh_dim_names=("half", "rank"))["rank"]
    with TemporaryDirectory() as folder:  # every rank makes one, and all use that of rank 0
        dist.broadcast_object_list(shared := [folder])
        on_my_share = clipped(clip_by_pytorch, [], rank, world_size)
        trained = train(sharded(network(device)), device, on_my_share, steps=2)
        dcp.save(states(*trained), checkpoint_id=shared[0])
        files = len(os.listdir(shared[0]))

        model = sharded(network(device), half)
        optimizer = torch.optim.Adam(model.parameters(), lr=1.0)  # the right one is in the file
        rates = [optimizer.param_groups[0]["lr"]]
        state = states(model, optimizer)
        dcp.load(state, checkpoint_id=shared[0], process_group=half.get_group())
        set_state_dict(
            model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )
        dist.barrier()  # all have read
    rates.append(optimizer.param_groups[0]["lr"])
    on_my_share = clipped(clip_by_pytorch, [], half.get_local_rank(), n)
    for step in (2, 3):
        optimizer.zero_grad()
        on_my_share(model, *batch(step, device))
        optimizer.step()
    with counting() as counts:
        copy = whole(model, optimizer, device)
    check_training(copy, expected, "four to two")
    check(rates, [1.0, expected[1].param_groups[0]["lr"]], "learning rate before and after")
    check(files, world_size + 1, "files")
    calls = counts["_c10d_functional.all_gather_single"].calls
    check(calls, 3 * len([*model.parameters()]), "calls of whole")

    weight = expected[0][1].up.weight.data  # as an example, who holds which part of it
    part = weight.chunk(n)[half.get_local_rank()]
    check(model[1].up.weight.to_local().data, part, "my shard", rtol=1e-6)
    parts = {"saved": weight.chunk(world_size)[rank]}
    for number, name in enumerate(("first half", "second half")):
        parts[name] = part if rank // n == number else weight[:0]
    slices = {name: Slice.of(one, weight) for name, one in parts.items()}
    return {"files": files, "calls of whole": calls, "a weight": Slices(slices)}


# %%
if __name__ == "__main__":
    run(four_to_two, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 5: one of each rank, and the list of all parts. The other program hangs, because `whole` calls
# `all_gather` 96 times, for parameters and means, and rank 0 waits in the first call while every
# other rank continues with the next step. All ranks must call `full_tensor()`, and then rank 0 may
# write.
#
# </details>

# %%
STEPS = [when_to_make_the_optimizer, clip, four_to_two]

# %% [markdown]
# ## Make it wrong
#
# Make one change, run the steps, read what the proof says, and undo it.
#
# 1. **Each rank clips by its own norm.** In `clip_by_hand`, change `dist.all_reduce(squares)` to
#    `pass`. It says `relative error`.
# 2. **Nothing is loaded.** In `four_to_two`, change `dcp.load(state,` to `dict(`. It says
#    `relative error`: the training begins anew.
# 3. **The batches from the start again.** In `four_to_two`, change `for step in (2, 3):` to `for
#    step in (0, 1):`. It says `relative error`.

# %% [markdown]
# ## Read on
#
# Now every layer travels three times in a step, also between machines. Next lesson:
# [hybrid](../../notebooks/model_parallel/hybrid.ipynb), where it does not.
