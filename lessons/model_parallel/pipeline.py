# %% [markdown]
"""
# pipeline: each rank keeps some layers, GPipe and 1F1B

Each rank holds some of the layers, and pieces of the batch travel from rank to rank.

Your model has too many layers for one machine, and the link to the next machine is slow. So you put
half of the layers on each, and only activations cross the link. But then one machine waits while
the other one computes. In this lesson you send micro-batches through the ranks in three orders, and
count how long the ranks have nothing to do, and how much they keep.

    python lessons/model_parallel/pipeline.py
    torchrun --nproc-per-node 4 lessons/model_parallel/pipeline.py
"""

# %%
from functools import partial

from collectives import check, check_training, counting, needs, run
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.functional import cross_entropy

from passes import passes_of
from pipeline_slots import PipelineSlots
from costs import SMALL, Plan, costs
from measure import Activations
from model import LENGTH, WIDTH, network
from one_process import UPDATES, train

# %% [markdown]
# ## The idea
#
# A pipeline cuts a model between its layers: rank 0 has the first ones, and the last rank computes
# the loss. A rank sends its activations to the next rank, and in the backward pass it receives
# their gradient from there. These are the only messages.
#
# But each layer needs the one before it, so only one rank would work at a time. The cure is to cut
# the batch into m [micro-batches](../../docs/glossary.md#micro-batch), and to add up their
# gradients. While rank 1 computes the first one, rank 0 computes the second. The time in which a
# rank still waits is called the bubble. With p ranks it is (p - 1) / (m + p - 1) of a step, if all
# passes take equally long.
#
# ![Two ranks, first with the whole batch, then with three micro-batches: the white gaps in which
# they wait become smaller](../../docs/ideas/pipeline.svg)
#
# Here two ranks pass a batch forward and backward, first as a whole and then in three
# micro-batches. The white gaps are the bubble, and the number is that of the micro-batch.

# %% [markdown]
# ## The code
#
# How long a rank waits, and how much it keeps, depends on the order of its passes. We compare
# three:
#
# - **Naive**: one micro-batch, the whole batch.
# - [**GPipe**](https://arxiv.org/abs/1811.06965): all forward passes, then all backward passes.
# - **1F1B**: as soon as a rank can make a backward pass, it makes one for each forward pass
#   ([PipeDream-Flush](https://arxiv.org/abs/2006.09503)).
#
# The model has 2 n - 2 blocks here, so that with embedding and head each rank has two layers. The
# ranks send by `isend`, because in 1F1B two neighbours send to each other at the same time, and
# with `send` they would wait for each other until the time limit.

# %% [markdown]
# **Predict first.** Four ranks, 8 micro-batches: how many slots does a step of GPipe take, if each
# pass takes one? Is 1F1B quicker?


# %%
def gpipe(rank, n, m):
    return [("forward", one) for one in range(m)] + [("backward", one) for one in range(m)]


def one_f_one_b(rank, n, m):
    forward, backward = gpipe(rank, n, m)[:m], gpipe(rank, n, m)[m:]
    ahead = min(m, n - 1 - rank)  # forward passes before the first backward pass
    by_turns = [one for pair in zip(forward[ahead:], backward, strict=False) for one in pair]
    return forward[:ahead] + by_turns + backward[m - ahead :]


def loss_of(result, following):
    return cross_entropy(result.flatten(0, 1), following.flatten())


def through_ranks(order, m, made, stage, letters, following):
    """The passes of this rank in one step. `made` notes each, and how many results are kept."""
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    inputs, targets, passes, messages = letters.chunk(m), following.chunk(m), {}, []
    for kind, number in order:
        if kind == "forward":
            x = inputs[number]
            if rank > 0:
                x = torch.empty(*x.shape, WIDTH, dtype=torch.float64, device=x.device)
                dist.recv(x, src=rank - 1)
                x.requires_grad_()
            result = stage(x)
            if rank < last:
                messages.append(dist.isend(result.detach(), dst=rank + 1))
            else:
                result = loss_of(result, targets[number]) / m
            passes[number] = x, result
            made.append((kind, number, len(passes)))
        else:
            x, result = passes.pop(number)
            gradient = None  # of the loss, it is 1
            if rank < last:
                gradient = torch.empty_like(result)
                dist.recv(gradient, src=rank + 1)
            result.backward(gradient)
            if rank > 0:
                messages.append(dist.isend(x.grad, dst=rank - 1))
            made.append((kind, number, len(passes)))
        while len(messages) > 1:  # what is sent stays in memory until it has arrived
            messages.pop(0).wait()
    messages.pop().wait()


def my_layers(device):
    rank, n = dist.get_rank(), dist.get_world_size()
    return network(device, blocks=2 * n - 2)[2 * rank : 2 * rank + 2]


def alone(device):
    """This rank's layers, and the optimizer of all, after one process has trained the model."""
    rank, n = dist.get_rank(), dist.get_world_size()
    model, optimizer = train(network(device, blocks=2 * n - 2), device)
    return model[2 * rank : 2 * rank + 2], optimizer


@needs(ranks=2)
def pipeline(rank, world_size, device):
    expected, n = alone(device), world_size
    trained, pictures, kept = {}, {}, {}
    orders = {"naive": (gpipe, 1), "GPipe": (gpipe, 8), "1F1B": (one_f_one_b, 8)}
    for name, (order, m) in orders.items():
        stage, made = my_layers(device), []
        step = partial(through_ranks, order(rank, n, m), m, made)
        with counting() as counts, Activations(stage) as activations:
            trained[name] = train(stage, device, step)
        check_training(trained[name], expected, name, same_bits=False)

        every, passes = [None] * n, made[: 2 * m]  # those of the first step
        dist.all_gather_object(every, [(kind, number) for kind, number, _ in passes])
        pictures[name] = PipelineSlots.of(name, every)
        check(pictures[name].length, 2 * (m + n - 1), f"slots of {name}")
        most = min(m, n - rank) if name == "1F1B" else m
        check(max(number for _, _, number in passes), most, f"micro-batches kept, {name}")
        plan = Plan(pipeline=n, micro_batches=m, order="1F1B" if name == "1F1B" else "GPipe")
        kept[name] = costs(SMALL._replace(blocks=2 * n - 2), plan, rank)["activations"]
        if device.type == "cpu":  # on a GPU, attention in float64 keeps its scores, too
            check(activations.peak, kept[name], f"bytes kept, {name}")
        messages = UPDATES * ((rank > 0) + (rank < n - 1))
        check(counts["c10d.send"].calls, messages * m, f"messages, {name}")
        check(counts["c10d.send"].bytes, messages * 8 * 8 * LENGTH * WIDTH, f"bytes sent, {name}")
    check_training(trained["1F1B"], trained["GPipe"], "bits", limit=0.0, same_bits=False)
    return pictures | {f"bytes kept, {name}": kept[name] for name in ("GPipe", "1F1B")}


# %%
if __name__ == "__main__":
    run(pipeline, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 22 slots. A rank works in 8 + 8 = 16 of them, and the rest is the bubble. 1F1B is not quicker, but
# it saves memory: rank 0 keeps 536,576 bytes of activations in place of 1,073,152. A rank of GPipe
# keeps all micro-batches, and one of 1F1B at most as many as there are ranks from itself to the
# last.
#
# The naive order takes 8 slots, of which a rank works in 2, but each slot is 8 times as long.
#
# </details>

# %% [markdown]
# ### torch.distributed.pipelining
#
# PyTorch has the same schedules. You pass a `PipelineStage` its part of the model and its number.


# %%
@needs(ranks=2)
def by_pipelining(rank, world_size, device):
    stage = my_layers(device)
    part = PipelineStage(stage, rank, world_size, device)
    schedule, made = Schedule1F1B(part, n_microbatches=8, loss_fn=loss_of), passes_of(part)

    def step(_, letters, following):
        inputs = [letters] if rank == 0 else []
        schedule.step(*inputs, target=following if rank == world_size - 1 else None)

    trained = train(stage, device, step)
    check_training(trained, alone(device), "torch.distributed.pipelining", same_bits=False)
    found = [(kind, number) for kind, number, _ in made]
    check(found, UPDATES * one_f_one_b(rank, world_size, 8), "order of Schedule1F1B")
    return {"parameters": sum(one.numel() for one in stage.parameters())}


# %%
if __name__ == "__main__":
    run(by_pipelining)

# %%
STEPS = [pipeline, by_pipelining]

# %% [markdown]
# ## The proof
#
# Each rank compares its layers, and Adam's state for them, with those of one process, to 1e-9. The
# bytes kept are those that [costs.py](../../lessons/model_parallel/costs.py) computes from shapes.
# They are what autograd keeps, so a result that travels is not among them. `Schedule1F1B` makes our
# passes, in our order.

# %% [markdown]
# ## On GPUs
#
# - On NCCL two neighbours that both send first can wait for each other, also with `isend`, because
#   the messages between them run one after the other. So PyTorch's schedules start a send and a
#   receive as one batch (`torch/distributed/pipelining/schedules.py`: "Mixed batches still use
#   batch_isend_irecv for deadlock avoidance.").

# %% [markdown]
# ## Make it wrong
#
# Make one change, run the steps, read what the proof says, and undo it.
#
# 1. **A micro-batch twice.** In `through_ranks`, change `x = inputs[number]` to `x = inputs[0]`. It
#    says `relative error`.
# 2. **The sum for the mean.** In `through_ranks`, change `targets[number]) / m` to
#    `targets[number])`. It says `relative error`.
# 3. **Nothing ahead.** In `one_f_one_b`, change `ahead = min(m, n - 1 - rank)` to `ahead = 0`. It
#    says `should be 22 [slots of 1F1B`.
# 4. **One too many ahead.** In `one_f_one_b`, change `ahead = min(m, n - 1 - rank)` to `ahead =
#    min(m, n - rank)`. It says `[micro-batches kept, 1F1B`.

# %% [markdown]
# ## Write it yourself
#
# In your folder of [exercises](../../README.md#exercises):
#
# ```sh
# collectives practice one_forward_one_backward
# ```

# %% [markdown]
# ## Read on
#
# 1F1B saves memory, but the bubble remains. Next lesson:
# [schedules](../../notebooks/model_parallel/schedules.ipynb), with two orders that make it smaller.
