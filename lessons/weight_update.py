# %% [markdown]
"""
# weight_update: a trainer sends new weights to inference engines

A trainer sends its new weights to the ranks that work with copies of them.

In reinforcement learning of a language model, one rank trains while engines generate text with
copies of its weights. After each update the copies are old, so the trainer sends the new weights to
every engine. But the reference model must not get them: it keeps the old weights, for comparison.

At the end you can update a model on some of the ranks, in one call in place of hundreds.

    python lessons/weight_update.py
    torchrun --nproc-per-node 4 lessons/weight_update.py
"""

# %%
from collectives import check, needs, note_calls, run
import torch
import torch.distributed as dist

# %% [markdown]
# ## The group
#
# The last rank is the trainer, rank 0 is the reference, and the ranks between them are engines. A
# broadcast to all ranks would overwrite the reference, too. So the trainer and its engines form a
# group, and `group=` limits the broadcast to it.
#
# The model has three numbers in two tensors. We broadcast the tensors of `state_dict()`, because
# they are [views](../docs/glossary.md#view) of the model's own memory: what arrives in them is in
# the model.


# %%
def model_of(rank, device):
    model = torch.nn.Linear(2, 1, device=device)
    numbers = 10.0 * rank + torch.tensor([1.0, 2.0, 3.0], device=device)
    torch.nn.utils.vector_to_parameters(numbers, model.parameters())
    return model


def numbers_of(model):
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach()


@needs(ranks=2)
def weight_update(rank, world_size, device):
    calls = note_calls()  # what this rank calls from here on
    trainer = world_size - 1
    group = dist.new_group(list(range(1, world_size)))  # every rank calls it, rank 0 too
    model = model_of(rank, device)
    before = numbers_of(model)
    if rank > 0:
        for tensor in model.state_dict().values():
            dist.broadcast(tensor, src=trainer, group=group)
    # proof
    source = trainer if rank > 0 else 0
    check(numbers_of(model), 10.0 * source + torch.tensor([1.0, 2.0, 3.0]), "broadcast(group=...)")
    expected = ["new_group", *["broadcast"] * (2 if rank > 0 else 0)]
    check([call.name for call in calls], expected, "a broadcast of each tensor, none on rank 0")
    role = "trainer" if rank == trainer else "engine" if rank > 0 else "reference"
    return {"role": role, "before": before, "after": numbers_of(model)}


# %%
if __name__ == "__main__":
    run(weight_update)

# %% [markdown]
# Four ranks print this:
#
# | rank | role | before | after |
# |---|---|---|---|
# | 0 | reference | [1.0, 2.0, 3.0] | [1.0, 2.0, 3.0] |
# | 1 | engine | [11.0, 12.0, 13.0] | [31.0, 32.0, 33.0] |
# | 2 | engine | [21.0, 22.0, 23.0] | [31.0, 32.0, 33.0] |
# | 3 | trainer | [31.0, 32.0, 33.0] | [31.0, 32.0, 33.0] |
#
# Rank 0 alone has kept its weights, because it is not in the group and makes no broadcast.

# %% [markdown]
# ### One bucket
#
# This model needs two broadcasts. A real model has hundreds of tensors, and each call costs time.
# So we copy all tensors into one flat tensor, a [bucket](../docs/glossary.md#bucket), which takes
# one broadcast.
#
# The trainer sends the length of the bucket first, because on gloo a message that is too long [ends
# the receiver's process](../notebooks/mistakes/buffers.ipynb).


# %%
@needs(ranks=2)
def one_bucket(rank, world_size, device):
    calls = note_calls()  # what this rank calls from here on
    trainer = world_size - 1
    group = dist.new_group(list(range(1, world_size)))
    model = model_of(rank, device)
    if rank > 0:
        tensors = list(model.state_dict().values())
        bucket = torch.cat([tensor.flatten() for tensor in tensors])
        length = torch.tensor([len(bucket)], device=device)
        dist.broadcast(length, src=trainer, group=group)
        if length.item() != len(bucket):
            raise ValueError(f"the trainer sends {length.item()} numbers, not {len(bucket)}")
        dist.broadcast(bucket, src=trainer, group=group)
        parts = bucket.split([tensor.numel() for tensor in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view_as(tensor))
    # proof
    source = trainer if rank > 0 else 0
    expected = 10.0 * source + torch.tensor([1.0, 2.0, 3.0])
    check(numbers_of(model), expected, "broadcast of one bucket")
    lengths = [call.tensors[0].numel for call in calls if call.name == "broadcast"]
    check(lengths, [1, 3] if rank > 0 else [], "numbers of each broadcast: the length, the bucket")
    return {"after": numbers_of(model)}


# %%
if __name__ == "__main__":
    run(one_bucket)

# %%
STEPS = [weight_update, one_bucket]

# %% [markdown]
# ## The cost
#
# On gloo with four ranks on two cores, a broadcast of 4 KiB took 1 ms. One of 16 MiB took only 18
# ms (`collectives bench bus broadcast -n 4 -b 4KiB -e 16MiB -f 4096`), although it carries 4,096
# times as much. So small calls cost [messages](../notebooks/algorithms/tree.ipynb), not bytes, and
# a bucket saves messages. Its price is memory, because it is a second copy of its tensors. This is
# why a large model is sent in several buckets.

# %% [markdown]
# ## Pitfalls
#
# - Trainer and engines must list the tensors in the same order. They do if they use the same class
#   of model.
# - Here trainer and engines are ranks of one job. Two jobs that you start separately have a world
#   each, and `new_group` cannot join them, because it knows the ranks of one world.
#   [two_jobs](../notebooks/machines/two_jobs.ipynb) joins them.
# - An engine that answers while weights arrive may mix two versions:
#   [versions](../notebooks/machines/versions.ipynb) shows how not to.
# - A trainer whose weights are sharded sends each engine only its slice:
#   [reshard](../notebooks/model_parallel/reshard.ipynb).
# - `parameters()` leaves out the buffers of a model, such as the running mean of a BatchNorm.
# - `torch.cat` turns integers into floating-point numbers, so give each dtype a bucket of its own,
#   or view all tensors as bytes, as [the program](../examples/weight_update.py) does.

# %% [markdown]
# ## On GPUs
#
# - A broadcast over NCCL returns before the weights have come: its `wait` ["will block the
#   currently active CUDA stream until the operation is completed (but will not block the
#   CPU)"](https://docs.pytorch.org/docs/stable/distributed.html#synchronous-and-asynchronous-collective-operations).
#   An engine that computes with them on the same stream need not care. One that reports them as
#   received calls `torch.cuda.synchronize()` first.
# - A rank that waits in vain raises no error that an engine could catch: after the time limit of
#   the group the process ends (`torch/distributed/distributed_c10d.py`: "collectives will be
#   aborted asynchronously and the process will crash").

# %% [markdown]
# ## Change and try
#
# Make one change, run that cell and the next one, and undo it.
#
# 1. In `weight_update`, change `src=trainer` to `group_src=trainer`. The trainer is rank 3. Does
#    the call still find it?
#
#    <details><summary>Answer</summary>
#
#    You get `RuntimeError: ProcessGroupGloo::broadcast: invalid root rank: 3`. `group_src` counts
#    within the group, whose three ranks have the numbers 0, 1 and 2.
#
#    </details>
#
# 2. In `one_bucket`, change `tensor.copy_(part.view_as(tensor))` to `pass`. Which ranks have the
#    old weights?
#
#    <details><summary>Answer</summary>
#
#    You get `rank 1/4: got [11.0, 12.0, 13.0], should be [31.0, 32.0, 33.0] [broadcast of one
#    bucket, float32[3], gloo]`. Both engines do, because the bucket is a copy of the weights and no
#    view: what arrives in it must be copied back.
#
#    </details>

# %% [markdown]
# ## Write it yourself
#
# For your own model, begin with [weight_update.py](../examples/weight_update.py), which needs torch
# alone, sends several buckets, and first compares the tensors of trainer and engines. If your
# engines are SGLang or vLLM, [Engines](../docs/engines.md) has a trainer that speaks their
# protocols, and says how OpenRLHF, verl, slime and TRL do it.
#
# In your folder of [exercises](../README.md#exercises):
#
# ```sh
# collectives practice weights_are_equal
# collectives practice weights_in_one_call
# ```

# %% [markdown]
# ## Read on
#
# - L. Ouyang and others, [*Training language models to follow instructions with human
#   feedback*](https://arxiv.org/abs/2203.02155) (2022): why a reference model keeps the old
#   weights.
# - J. Hu and others, [*OpenRLHF*](https://arxiv.org/abs/2405.11143) (2024): a framework.
#
# In PyTorch's documentation:
#
# - [`broadcast`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.broadcast)
# - [`new_group`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.new_group)
#
# Next lesson: [barrier](../notebooks/barrier.ipynb), the call that moves no data at all.
