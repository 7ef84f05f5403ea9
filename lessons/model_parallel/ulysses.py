# %% [markdown]
"""
# ulysses: context parallelism, all_to_all of attention heads

Each rank holds a part of the text; for attention, it holds all of the text and some of the heads.

Your text is cut over the ranks, and attention needs all of it. A ring brings every key to every
rank, which is a lot of bytes and a kernel of its own. But eight heads can be computed on eight
ranks without a single message, if each rank has the whole text for its head. In this lesson you get
there with two calls of `all_to_all`, keep PyTorch's attention as it is, and can say afterwards when
the ring is still better.

    python lessons/model_parallel/ulysses.py
    torchrun --nproc-per-node 4 lessons/model_parallel/ulysses.py
"""

# %%
from collectives import check, check_training, counting, needs, run
import torch
import torch.distributed as dist
from torch.nn.functional import scaled_dot_product_attention

from attention import alone, as_trained, sample
from slices import Slice, Slices
from long_text import RingAttention
from measure import Activations
from model import HEADS, LENGTH, LETTERS, WIDTH, network
from one_process import UPDATES, backward, train

# %% [markdown]
# ## The idea
#
# As in [long_text](../../notebooks/model_parallel/long_text.ipynb), each rank holds a part of the
# text, and only attention needs the other parts. But attention computes each head by itself, so a
# rank that has all of the text for some heads needs no other rank. Therefore change what is cut
# ([DeepSpeed Ulysses](https://arxiv.org/abs/2309.14509)):
#
# 1. After an `all_to_all` of queries, keys and values, each rank has all of the text for its heads.
# 2. Each rank computes ordinary attention.
# 3. After an `all_to_all` of the result, each rank has all heads for its part of the text again.
#
# In `backward()`, the gradients travel the same ways in the other direction.

# %% [markdown]
# ## The exchange
#
# The last three dimensions of a tensor are heads, text and the numbers of one head. Because
# `all_to_all_single` sends block i of its input to rank i, `Exchange` cuts the tensor in one
# dimension, and joins the blocks that arrive in the other one.

# %%
BY_HEADS, BY_TEXT = -3, -2


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, cut, join):
        ctx.back = join, cut
        sends = torch.stack(x.chunk(dist.get_world_size(), dim=cut))
        arrived = torch.empty_like(sends)
        dist.all_to_all_single(arrived, sends)
        return torch.cat(arrived.unbind(), dim=join)

    @staticmethod
    def backward(ctx, gradient):
        return Exchange.apply(gradient, *ctx.back), None, None


@needs(ranks=2)
def heads_for_text(rank, world_size, device):
    numbers = torch.arange(HEADS * LENGTH, device=device).view(HEADS, LENGTH, 1)
    part = numbers.chunk(world_size, dim=BY_TEXT)[rank]
    heads = numbers.chunk(world_size, dim=BY_HEADS)[rank]
    exchanged = Exchange.apply(part, BY_HEADS, BY_TEXT)
    check(exchanged, heads, "all of the text")
    check(Exchange.apply(exchanged, BY_TEXT, BY_HEADS), part, "and back")
    slices = {
        "before": Slice.of(part.squeeze(-1), numbers.squeeze(-1)),
        "after": Slice.of(heads.squeeze(-1), numbers.squeeze(-1)),
    }
    return Slices(slices, ("head", "character of the text"), "all_to_all_single")


# %%
if __name__ == "__main__":
    run(heads_for_text)

# %% [markdown]
# ## Attention
#
# Queries, keys and values can travel in one call. Afterwards a rank has all of the text, in order,
# so `is_causal` is right as it is, and because no rank computes more than another, there is no need
# for a zigzag.

# %% [markdown]
# **Predict first.** Which one sends more bytes, Ulysses or the ring of
# [long_text](../../notebooks/model_parallel/long_text.ipynb), and does the difference grow with the
# number of ranks?


# %%
def ulysses_attention(*parts):
    heads = Exchange.apply(torch.stack(parts), BY_HEADS, BY_TEXT)
    result = scaled_dot_product_attention(*heads, is_causal=True)
    return Exchange.apply(result, BY_TEXT, BY_HEADS)


def ring(*parts):
    return RingAttention.apply(*parts, "in order", [])


@needs(ranks=2)
def against_the_ring(rank, world_size, device):
    n, found = world_size, {}
    expected = alone(device).chunk(n, dim=BY_TEXT)[rank]
    for attention in (ulysses_attention, ring):
        inputs = sample(device).chunk(n, dim=BY_TEXT)[rank].clone().requires_grad_()
        with counting() as counts:
            result = attention(*inputs[:3])
            result.backward(inputs[3].detach())
        got = [result, *inputs.grad[:3]]
        check_training(as_trained(got), as_trained(expected), "attention", same_bits=False)
        calls, size = counts["c10d.all_to_all_single"]
        exchanged = [calls, size - size // n]  # one of n blocks stays here
        found[attention.__name__] = exchanged if calls else list(counts["c10d.send"])
    part = 8 * 8 * LENGTH // n * WIDTH  # the bytes of this rank's queries
    check(found["ulysses_attention"], [4, 8 * part * (n - 1) // n], "exchanges and bytes")
    check(found["ring"], [3 * n - 2, 2 * part * (3 * n - 2)], "blocks sent, and bytes")
    table = {name: f"{calls} calls, {size} bytes" for name, (calls, size) in found.items()}
    return {"queries": f"{part} bytes"} | table


# %%
if __name__ == "__main__":
    run(against_the_ring, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# The ring: 327,680 bytes against 98,304 on four ranks, and the difference grows. Let a part be the
# bytes of a rank's queries, 16,384. With n ranks, a rank sends 3 n - 2 blocks of two parts around
# the ring. With Ulysses it exchanges eight parts, which are queries, keys, values, the result, and
# four gradients, and keeps one block of n of each, so it sends 8 (n - 1) / n parts. A part is 1 / n
# of the text, so with more ranks a rank sends less and less with Ulysses, but not around the ring.
#
# </details>

# %% [markdown]
# Why does anybody still use the ring? There are three reasons:
#
# - **Number of ranks.** Ulysses needs a head for each rank. Our 8 heads are enough for 8 ranks.
# - **Fewer keys.** Many models have one head of keys and values for g heads of queries. With two
#   ranks and g = 8, the ring then sends 1 part in place of 8, and Ulysses 2.25 in place of 4.
# - **Overlap.** A rank of the ring computes with one block while the next one travels. With Ulysses
#   it waits for all blocks first.

# %% [markdown]
# ### Training
#
# The rest of the training is as in long_text.


# %%
@needs(ranks=2)
def ulysses(rank, world_size, device):
    n, mine = world_size, torch.arange(LENGTH).chunk(world_size)[rank]

    def on_my_part(model, letters, following):
        backward(model, letters[:, mine], following[:, mine])
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= n

    embedding, *blocks, _ = model = network(device)
    embedding.forward = lambda letters: embedding.letter(letters) + embedding.place.weight[mine]
    for block in blocks:
        block.mix = ulysses_attention
    with Activations(model) as activations, counting() as counts:
        trained = train(model, device, on_my_part)
    check_training(trained, train(network(device), device), "ulysses", same_bits=False)
    # Each character counts as in memory.py, with the result of attention twice in each block.
    numbers = 34 * WIDTH + 10 + 2 * HEADS + LETTERS + 2 * WIDTH
    if device.type == "cpu":  # on a GPU, attention in float64 keeps its scores, too
        check(activations.peak, 8 * (8 * LENGTH // n * numbers + 1), "activations")
    calls, size = (one // UPDATES for one in counts["c10d.all_to_all_single"])
    check([calls, size], [8, 2 * 8 * 8 * 8 * LENGTH // n * WIDTH], "exchanged in a step")
    return {"activations": activations.peak, "calls": calls, "bytes sent": size - size // n}


# %%
if __name__ == "__main__":
    run(ulysses)

# %% [markdown]
# One of four ranks keeps 668,680 bytes, a little more than the 635,912 with the ring, because it
# keeps the result of attention twice, for its heads and for its part of the text.

# %%
STEPS = [heads_for_text, against_the_ring, ulysses]

# %% [markdown]
# ## The proof
#
# Result and gradients of attention equal those of `scaled_dot_product_attention` in one process,
# and the training equals that of one process, to 1e-9. Blocks, calls, bytes and activations equal
# closed forms. Operations are not counted, nor what `ctx` holds beside saved tensors.

# %% [markdown]
# ## Make it wrong
#
# Make one change, run the steps, read what the proof says, and undo it.
#
# 1. **Nothing sent.** In `forward`, change `dist.all_to_all_single(arrived, sends)` to
#    `arrived.copy_(sends)`. It says `[all of the text`.
# 2. **Nothing sent in backward.** In `backward`, change `Exchange.apply(gradient, *ctx.back)` to
#    `torch.cat(gradient.chunk(dist.get_world_size(), ctx.back[0]), ctx.back[1])`. It says
#    `relative error`: the result is right, its gradients are not.
# 3. **Heads and text swapped.** In `forward`, change `BY_HEADS, BY_TEXT = -3, -2` to
#    `BY_HEADS, BY_TEXT = -2, -3`. It says `relative error`.
# 4. **Three calls for one.** In `ulysses_attention`, change
#    `Exchange.apply(torch.stack(parts), BY_HEADS, BY_TEXT)` to
#    `[Exchange.apply(one, BY_HEADS, BY_TEXT) for one in parts]`. It says
#    `should be [4, 98304] [exchanges and bytes`. The result is right, and the bytes are the same.

# %% [markdown]
# ## Read on
#
# An `all_to_all` can send tokens, too. Next lesson:
# [experts](../../notebooks/model_parallel/experts.ipynb), where each token chooses its rank.
