# %% [markdown]
"""
# schedules: interleaved and zero-bubble pipelines

Two other orders of the passes make the bubble of a pipeline smaller, and each has its price.

Your pipeline has four ranks, and each of them is idle for a quarter of every step. More
micro-batches would help, but the batch has no more. In this lesson you change only the order of the
work: you give each rank two parts of the model that are not neighbours, then you cut the backward
pass in two. You see the bubble shrink, and what each order costs.

    python lessons/model_parallel/schedules.py
    torchrun --nproc-per-node 4 lessons/model_parallel/schedules.py
"""

# %%
from functools import partial

from collectives import check, check_training, counting, needs, run
import torch
import torch.distributed as dist
from torch.distributed import pipelining

from passes import in_halves, kinds_with_gradients, passes_of
from pipeline_slots import PipelineOrders, PipelineSlots
from model import LENGTH, WIDTH, network
from one_process import UPDATES, train
from pipeline import loss_of, one_f_one_b

# %% [markdown]
# ## The idea
#
# With 1F1B ([pipeline](../../notebooks/model_parallel/pipeline.ipynb)) a rank waits at the start,
# until the first [micro-batch](../../docs/glossary.md#micro-batch) reaches it, and at the end,
# while the last gradients travel back. With p ranks and m micro-batches, this bubble is
# (p - 1) / (m + p - 1) of a step. Two orders have a smaller one:
#
# - [**Interleaved 1F1B**](https://arxiv.org/abs/2104.04473): a rank has v short parts of the model,
#   stages r, r + p, and so on, and a micro-batch goes round the ranks v times. A stage takes 1 / v
#   of the time, so the next rank waits less. The bubble is (p - 1) / (v m + p - 1).
# - [**Zero bubble**](https://arxiv.org/abs/2401.10241): a backward pass computes two gradients. The
#   rank before waits for that of the input, but nobody needs that of the weights before the
#   optimizer's step. So a rank computes and sends the first one, and computes the second one later,
#   when it would only wait. We write ZB-H1, the simplest order of that paper.

# %% [markdown]
# ## The code
#
# A pass is (kind, micro-batch, part of this rank), and for zero bubble the kind "backward" becomes
# "input" and "weights". Each rank has two of the 2 n layers again. For `interleaved` v is 2, so
# each layer is a part of its own, and for the other orders both layers are one part. `interleaved`
# makes groups of n micro-batches: a group goes through the first parts of all ranks, and then
# through the second parts.

# %% [markdown]
# **Predict first.** Four ranks, 8 micro-batches: a rank works in 48 slots, in every order. With
# 1F1B, a step takes 66. Which is the shortest, 1F1B, interleaved or zero bubble? Which of them
# keeps the most activations?

# %%
MICRO_BATCHES = 8
# In slots: a layer takes one for its forward pass, for the gradient of its input, of its weights.
LENGTHS = {"forward": 1, "backward": 2, "input": 1, "weights": 1}


def plain(rank, n, m):
    return [(*one, 0) for one in one_f_one_b(rank, n, m)]


def interleaved(rank, n, m, lead=2):
    groups = [range(first, first + n) for first in range(0, m, n)]
    turns = [(one, part) for group in groups for part in (0, 1) for one in group]
    forward = [("forward", one, part) for one, part in turns]
    backward = [("backward", one, 1 - part) for one, part in turns]
    ahead = min(2 * m, lead * (n - 1 - rank) + n)  # forward passes before the first backward pass
    by_turns = [one for pair in zip(forward[ahead:], backward, strict=False) for one in pair]
    return forward[:ahead] + by_turns + backward[2 * m - ahead :]


def zero_bubble(rank, n, m):
    order, later = [], rank  # the weights wait for so many micro-batches
    for kind, one, _ in plain(rank, n, m):
        order.append(("forward" if kind == "forward" else "input", one, 0))
        if kind == "backward" and one >= later:
            order.append(("weights", one - later, 0))
    return order + [("weights", one, 0) for one in range(m - later, m)]


def through_parts(order, parts, made, _, letters, following):
    """The passes of this rank in a step. `made` notes each, and how many results are kept."""
    rank, n, m = dist.get_rank(), dist.get_world_size(), MICRO_BATCHES
    left, right, last = (rank - 1) % n, (rank + 1) % n, n * len(parts) - 1
    inputs, targets, kept, messages = letters.chunk(m), following.chunk(m), {}, []
    for kind, number, part in order:
        stage = part * n + rank
        if kind == "forward":
            x = inputs[number]
            if stage > 0:
                x = torch.empty(*x.shape, WIDTH, dtype=torch.float64, device=x.device)
                dist.recv(x, src=left)
                x.requires_grad_()
            result = parts[part](x)
            if stage < last:
                messages.append(dist.isend(result.detach(), dst=right))
            else:
                result = loss_of(result, targets[number]) / m
            kept[number, part] = x, result, None
        elif kind == "weights":
            _, result, gradient = kept.pop((number, part))
            result.backward(gradient, inputs=[*parts[part].parameters()])
        else:
            x, result, gradient = kept.pop((number, part))  # that of the loss is 1: None
            if stage < last:
                gradient = torch.empty_like(result)
                dist.recv(gradient, src=right)
            if kind == "backward":
                result.backward(gradient)
            else:
                kept[number, part] = x, result, gradient
                if stage > 0:
                    result.backward(gradient, retain_graph=True, inputs=[x])
            if stage > 0:
                messages.append(dist.isend(x.grad, dst=left))
        made.append((kind, number, part, len(kept)))
    for message in messages:
        message.wait()


def cut(model, v):
    """This rank's layers. If v is 2, they are not neighbours."""
    rank, n = dist.get_rank(), dist.get_world_size()
    return model[rank::n] if v == 2 else model[2 * rank : 2 * rank + 2]


def whole(device):
    return network(device, blocks=2 * dist.get_world_size() - 2)


@needs(ranks=2)
def smaller_bubbles(rank, world_size, device):
    n, m, trained, pictures, kept, messages = world_size, MICRO_BATCHES, {}, [], [], []
    model, optimizer = train(whole(device), device)
    orders = {"1F1B": (plain, 1), "interleaved": (interleaved, 2), "zero bubble": (zero_bubble, 1)}
    # Of a micro-batch, both layers take two slots forward and four backward.
    bubbles = {"1F1B": 6 * (n - 1), "interleaved": 6 * (n - 1) // 2, "zero bubble": 2 * (n - 1)}
    most = {"1F1B": 2 * min(m, n - rank), "zero bubble": 2 * min(m, n)}
    most["interleaved"] = min(2 * m, 2 * (n - 1 - rank) + n + 1)
    for name, (order, v) in orders.items():
        layers, made = cut(whole(device), v), []
        kinds = kinds_with_gradients(layers, order(rank, n, m), made)
        parts = [*layers] if v == 2 else [layers]
        step = partial(through_parts, order(rank, n, m), parts, made)
        with counting() as counts:
            trained[name] = train(layers, device, step)
        check_training(trained[name], (cut(model, v), optimizer), name, same_bits=False)

        right = {"weights" if name == "zero bubble" else "backward"}
        check(kinds, right, f"passes with gradients of weights, {name}")
        every, passes = [None] * n, made[: len(made) // UPDATES]  # those of the first step
        dist.all_gather_object(every, [one[:3] for one in passes])
        lengths = {kind: slots * 2 // v for kind, slots in LENGTHS.items()}
        pictures.append(PipelineSlots.of(name, every, lengths))
        check(pictures[-1].length, 6 * m + bubbles[name], f"slots of {name}")
        kept.append(max(number for *_, number in passes) * 2 // v)
        check(kept[-1], most[name], f"layers kept, {name}")
        sends = sum((stage > 0) + (stage < v * n - 1) for stage in range(rank, v * n, n))
        calls, size = (one // UPDATES for one in counts["c10d.send"])
        check([calls, size], [m * sends, 8 * 8 * LENGTH * WIDTH * sends], f"sent, {name}")
        messages.append(calls)
    check_training(trained["zero bubble"], trained["1F1B"], "bits", limit=0.0, same_bits=False)
    return {"slots": PipelineOrders(pictures), "layers kept": kept, "messages": messages}


# %%
if __name__ == "__main__":
    run(smaller_bubbles, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Zero bubble, with 54 slots against 57. A rank waits in 66 - 48 = 18 slots with 1F1B, in 57 - 48 =
# 9 with interleaved, and in 54 - 48 = 6 with zero bubble.
#
# Interleaved keeps the most: rank 0 keeps the activations of 11 layers in place of 8, because it
# makes more forward passes before its first backward pass. It also sends more, on rank 1 32
# messages in place of 16. Zero bubble sends as many as 1F1B, but each rank keeps the activations of
# 8 layers, because the passes for the weights need them.
#
# </details>

# %% [markdown]
# ### torch.distributed.pipelining
#
# PyTorch has interleaved orders, with and without zero bubble. You pass the schedule a list of
# stages.


# %%
@needs(ranks=2)
def two_stages_by_pipelining(rank, world_size, device):
    n, (model, optimizer) = world_size, train(whole(device), device)
    orders = {
        pipelining.ScheduleInterleaved1F1B: interleaved(rank, n, 8),
        pipelining.ScheduleInterleavedZeroBubble: in_halves(interleaved(rank, n, 8, lead=1), rank),
    }
    for kind, order in orders.items():
        layers, stages = cut(whole(device), 2), []
        for part, layer in enumerate(layers):
            stages.append(pipelining.PipelineStage(layer, part * n + rank, 2 * n, device))
        schedule = kind(stages, n_microbatches=MICRO_BATCHES, loss_fn=loss_of)
        made = passes_of(*stages)

        def step(_, letters, following, schedule=schedule):
            inputs = [letters] if rank == 0 else []
            schedule.step(*inputs, target=following if rank == n - 1 else None)

        trained = train(layers, device, step)
        check_training(trained, (cut(model, 2), optimizer), kind.__name__, same_bits=False)
        check(made, UPDATES * order, f"order of {kind.__name__}")
    return {"parameters": sum(one.numel() for one in layers.parameters())}


# %%
if __name__ == "__main__":
    run(two_stages_by_pipelining)

# %%
STEPS = [smaller_bubbles, two_stages_by_pipelining]

# %% [markdown]
# ## The proof
#
# Each rank compares its layers and Adam's state with those of one process, to 1e-9. Slots, layers
# kept, messages and bytes sent equal closed forms. PyTorch's passes have our order, but its zero
# bubble has fewer forward passes ahead.

# %% [markdown]
# ## Make it wrong
#
# Make one change, run the steps, read what the proof says, and undo it.
#
# 1. **Weights at once.** In `zero_bubble`, change `later = [], rank` to `later = [], 0`. It says
#    `should be 54 [slots of zero bubble`. The model is right.
# 2. **All forward passes first.** In `interleaved`, change
#    `min(2 * m, lead * (n - 1 - rank) + n)` to `2 * m`. It says `[layers kept, interleaved`. The
#    model and the bubble are right.
# 3. **Parts that are neighbours.** In `cut`, change `model[rank::n]` to
#    `model[2 * rank : 2 * rank + 2]`. It says `relative error`: the layers have another order.
# 4. **Weights twice.** In `through_parts`, change `retain_graph=True, inputs=[x]` to
#    `retain_graph=True`. It says `relative error`.

# %% [markdown]
# ## Read on
#
# Layers and weights are cut now, but one long text can still be too much. Next lesson:
# [long_text](../../notebooks/model_parallel/long_text.ipynb).
