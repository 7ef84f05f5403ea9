# %% [markdown]
"""
# long_text: context parallelism, ring attention

Each rank holds a part of the text, and keys and values travel around a ring.

A user sends a text of a million tokens, and its activations alone fill a GPU. You cannot split the
batch, because it is one text. But you can split the text, if attention still sees all of it. In
this lesson you compute attention block by block, send the blocks from rank to rank while you
compute, and share out the work so that no rank waits.

    python lessons/model_parallel/long_text.py
    torchrun --nproc-per-node 4 lessons/model_parallel/long_text.py
"""

# %%
from math import inf

from collectives import check, check_training, counting, needs, run
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import context_parallel_unshard
from torch.nn import functional as F

from attention import alone, as_trained, chunks, places, sample
from late_send import LateSend
from travelling_blocks import Round, TravellingBlocks
from measure import Activations
from model import HEADS, LENGTH, LETTERS, WIDTH, network
from one_process import UPDATES, backward, train

# %% [markdown]
# ## The idea
#
# The activations grow with the length of a text, so if one text is too long for a rank, cut it.
# Most layers do not notice, because they compute each character by itself. Only in attention, a
# query meets the keys and values of all characters up to it. So in [ring
# attention](../../docs/glossary.md#ring-attention) queries stay on their rank, and keys and values
# travel around a ring: in each of n rounds, a rank computes with the block that it has.

# %% [markdown]
# ## Softmax, block by block
#
# Can you compute a softmax with only some of the keys? It divides by a sum over all keys, and a
# rank has only one block of them at a time. So the rank keeps the logarithm of the sum so far,
# `log_sum`. When another block makes the sum larger, `attend` makes the result smaller, and adds
# the new values. This is an [online softmax](https://arxiv.org/abs/1805.02867).
#
# Queries of chunk i meet all keys of the chunks before it. In chunk i itself, the causal mask hides
# later keys.


# %%
def scores_of(query, key, i, j):
    """The scores of chunk i of the queries with chunk j of the keys, where j <= i."""
    scores = query @ key.mT / query.shape[-1] ** 0.5
    later = torch.ones_like(scores, dtype=torch.bool).triu(1)
    return scores.masked_fill(later, -inf) if i == j else scores


def attend(rows, columns, pairs):
    """Add to the results, in place, what the queries of chunk i find in chunk j, for all pairs."""
    for i, j in pairs:
        (query, result, log_sum), (key, value) = rows[i], columns[j]
        scores = scores_of(query, key, i, j)
        total = torch.logaddexp(log_sum, scores.logsumexp(-1, keepdim=True))
        result.mul_((log_sum - total).exp()).add_((scores - total).exp() @ value)
        log_sum.copy_(total)


def online_softmax(rank, world_size, device):
    queries, keys, values, _ = sample(device)
    result, log_sum = torch.zeros_like(queries), torch.full_like(queries[..., :1], -inf)
    pairs = [(i, j) for i in range(8) for j in range(i + 1)]
    attend(chunks(range(8), queries, result, log_sum), chunks(range(8), keys, values), pairs)
    check_training(as_trained([result]), as_trained(alone(device)[:1]), "online softmax")
    return {"pairs of chunks": len(pairs)}


# %%
if __name__ == "__main__":
    run(online_softmax)

# %% [markdown]
# ## The ring
#
# The blocks can now come in any order, so let them travel. Each rank holds two of 2 n chunks,
# either in order, or in a zigzag from both ends. It starts to send its block, computes with it
# meanwhile, and waits for the next one. Send and receive start as one batch, because on NCCL ranks
# that all send first may wait for each other forever. In `backward`, the blocks travel again, and
# their gradients follow them: each rank adds its part.

# %% [markdown]
# **Predict first.** Four ranks hold 8 chunks in the order of the text, and a chunk makes a pair
# with itself and with each chunk before it. How many pairs does each rank compute? How many in a
# zigzag?


# %%
def chunks_of(order, rank, n):
    return {"in order": [2 * rank, 2 * rank + 1], "zigzag": [rank, 2 * n - 1 - rank]}[order]


def pass_on(block):
    rank, n = dist.get_rank(), dist.get_world_size()
    arriving = torch.empty_like(block)
    send = dist.P2POp(dist.isend, block, (rank + 1) % n)
    receive = dist.P2POp(dist.irecv, arriving, (rank - 1) % n)
    return arriving, dist.batch_isend_irecv([send, receive])


def around(block, order):
    """In each round: keys and values of the block that is here, and the chunks to compute."""
    rank, n = dist.get_rank(), dist.get_world_size()
    for turn in range(n):
        arriving, messages = pass_on(block) if turn < n - 1 else (None, [])
        owner = (rank - turn) % n
        theirs = chunks_of(order, owner, n)
        pairs = [(i, j) for i in chunks_of(order, rank, n) for j in theirs if j <= i]
        yield chunks(theirs, *block), Round(owner, theirs, pairs)
        for message in messages:
            message.wait()
        block = arriving


class RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, queries, keys, values, order, made):
        block, result = torch.stack([keys, values]), torch.zeros_like(queries)
        log_sum = torch.full_like(queries[..., :1], -inf)
        ctx.order, ctx.mine = order, chunks_of(order, dist.get_rank(), dist.get_world_size())
        ctx.save_for_backward(queries, block, result, log_sum)
        rows = chunks(ctx.mine, queries, result, log_sum)
        for columns, one in around(block, order):
            attend(rows, columns, one.pairs)
            made.append(one)
        return result

    @staticmethod
    def backward(ctx, gradient):
        queries, block, result, log_sum = ctx.saved_tensors
        of_queries, of_block = torch.zeros_like(queries), torch.zeros_like(block)
        dots = (gradient * result).sum(-1, keepdim=True)
        rows = chunks(ctx.mine, queries, log_sum, gradient, dots, of_queries)
        for columns, one in around(block, ctx.order):
            gradients = chunks(one.keys, *of_block)
            for i, j in one.pairs:
                (query, log, grad, dot, of_query), (key, value) = rows[i], columns[j]
                weights = (scores_of(query, key, i, j) - log).exp()
                of_scores = weights * (grad @ value.mT - dot) / query.shape[-1] ** 0.5
                of_query += of_scores @ key
                gradients[j][0].add_(of_scores.mT @ query)
                gradients[j][1].add_(weights.mT @ grad)
            of_block, messages = pass_on(of_block)
            for message in messages:
                message.wait()
        return of_queries, *of_block, None, None


@needs(ranks=2)
def ring_attention(rank, world_size, device):
    n, pictures = world_size, {}
    for order in ("in order", "zigzag"):
        mine, made, every = places(chunks_of(order, rank, n), n), [], [None] * n
        inputs = sample(device)[..., mine, :].requires_grad_()
        with counting() as counts, LateSend() as late:
            result = RingAttention.apply(*inputs[:3], order, made)
            check(sorted(vars(result.grad_fn)), ["mine", "order"], "kept, beside the saved tensors")
            result.backward(inputs[3].detach())
        got, expected = [result, *inputs.grad[:3]], alone(device)[..., mine, :]
        check_training(as_trained(got), as_trained(expected), order, same_bits=False)
        check(late.meanwhile, True, f"computed before the next block is sent, {order}")
        sends = 3 * n - 2  # blocks forward and backward, n - 1 times each, and gradients n times
        check(list(counts["c10d.send"]), [sends, sends * 2 * result.nbytes], "blocks sent")
        dist.all_gather_object(every, [tuple(one) for one in made])
        rounds = [[Round(*one) for one in ranks] for ranks in every]
        queries = [chunks_of(order, r, n) for r in range(n)]
        pictures[order] = TravellingBlocks(order, queries, rounds)
    found = [[one.pairs, one.longest] for one in pictures.values()]
    check(found[0], [[4 * one + 3 for one in range(n)], 4 * n - 1], "pairs, in order")
    check(found[1], [n * [2 * n + 1], 2 * n + 1], "pairs, zigzag")
    return pictures


# %%
if __name__ == "__main__":
    run(ring_attention, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# In order 3, 7, 11 and 15, and in a zigzag 9 each. In each round all ranks wait for the busiest
# one, so only the zigzag keeps all of them at work.
#
# </details>

# %% [markdown]
# ### Training
#
# In training every rank has all parameters, and the ranks average the gradients. One process kept
# 2,543,624 bytes of activations in [memory](../../notebooks/model_parallel/memory.ipynb).


# %%
@needs(ranks=2)
def long_text(rank, world_size, device):
    n, mine = world_size, places(chunks_of("zigzag", rank, world_size), world_size)

    def on_my_part(model, letters, following):
        backward(model, letters[:, mine], following[:, mine])
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= n

    embedding, *blocks, _ = model = network(device)
    embedding.forward = lambda letters: embedding.letter(letters) + embedding.place.weight[mine]
    for block in blocks:
        block.mix = lambda *heads: RingAttention.apply(*heads, "zigzag", [])
    with Activations(model) as activations, counting() as counts:
        trained = train(model, device, on_my_part)
    check_training(trained, train(network(device), device), "long text")
    numbers = 34 * WIDTH + 10 + 2 * HEADS + LETTERS  # that memory.py counts for each character
    check(activations.peak, 8 * (8 * LENGTH // n * numbers + 1), "activations")
    calls, sent = (one // UPDATES for one in counts["c10d.send"])
    check([calls, sent], [6 * n - 4, calls * 2 * 8 * 8 * LENGTH // n * WIDTH], "sent in a step")
    return {"activations": activations.peak, "bytes of blocks sent": sent, "blocks sent": calls}


# %%
if __name__ == "__main__":
    run(long_text)

# %% [markdown]
# One of four ranks keeps 635,912 bytes, which is a quarter.

# %% [markdown]
# ### context_parallel
#
# All of this is called [context parallel](../../docs/glossary.md#context-parallel). PyTorch has it,
# too, as a prototype. Inside of `context_parallel`, each tensor that you name is only this rank's
# part of it, and `F.scaled_dot_product_attention` is another function, which gathers or passes on
# keys and values. `context_parallel_unshard` puts a result together again.
#
# Cutting and joining run on any device, but the new attention has no kernel for a CPU: it needs one
# of the three attentions for GPUs that also return `log_sum`. So the step calls it, keeps its
# error, and puts our ring into its place.

# %% [markdown]
# **Predict first.** Which chunks does `context_parallel` give to a rank: in order, or in a zigzag?


# %%
def error_of_attention(*heads):
    try:
        F.scaled_dot_product_attention(*heads, is_causal=True)
    except NotImplementedError as error:
        return str(error).partition(".default ")[2]
    raise AssertionError("context_parallel has an attention for the CPU")


@needs(ranks=2)
def cut_by_torch(rank, world_size, device):
    mesh, whole = init_device_mesh(device.type, (world_size,)), alone(device)[0]
    *heads, text = *sample(device)[:3].unbind(), torch.arange(LENGTH, device=device)
    heads = [one.clone() for one in heads]
    with context_parallel(mesh, buffers=[text, *heads], buffer_seq_dims=[0, 2, 2, 2]):
        mine = text.tolist()
        result = RingAttention.apply(*heads, "zigzag", [])
        (joined,) = context_parallel_unshard(mesh, [result], [2])
        error = error_of_attention(*heads) if device.type == "cpu" else ""
    right = places(chunks_of("zigzag", rank, world_size), world_size).tolist()
    check(mine, right, "places in the text")
    check_training(as_trained([joined]), as_trained([whole]), "joined by torch")
    return {"places": mine, "error": error}


# %%
if __name__ == "__main__":
    run(cut_by_torch, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# In a zigzag, the same as ours.
#
# </details>

# %%
STEPS = [online_softmax, ring_attention, long_text, cut_by_torch]

# %% [markdown]
# ## The proof
#
# Result and gradients of attention equal those of `scaled_dot_product_attention`, and the training
# equals that of one process, to 1e-9. Blocks, bytes, pairs and activations equal closed forms. Rank
# 0 sends its first block late on purpose, so the proof notices a rank that waits before it
# computes. It also names what `ctx` holds beside saved tensors: no block of another rank.

# %% [markdown]
# ## Make it wrong
#
# Make one change, run the steps, read what the proof says, and undo it.
#
# 1. **Mask off by one.** In `scores_of`, change `triu(1)` to `triu(2)`. It says `relative error`.
# 2. **A shifted ring.** In `around`, change `(rank - turn) % n` to `(rank - turn - 1) % n`. It says
#    `relative error`.
# 3. **Sent too often.** In `around`, change `if turn < n - 1` to `if True`. It says
#    `should be [10, 327680] [blocks sent`. The result is right.
# 4. **In order, but joined as a zigzag.** In `cut_by_torch`, change `*heads, "zigzag", []` to
#    `*heads, "in order", []`. It says `relative error`.
# 5. **No zigzag.** In `chunks_of`, change `2 * n - 1 - rank` to `n + rank`. It says
#    `[pairs, zigzag`. The result is right.
#
# ## Write it yourself
#
# In your folder of [exercises](../../README.md#exercises):
#
# ```sh
# collectives practice ring_attention
# ```

# %% [markdown]
# ## Pitfalls
#
# - `context_parallel` replaces the function in the module `torch.nn.functional`. If a file of yours
#   has `from torch.nn.functional import scaled_dot_product_attention`, it goes on with the old one,
#   and each rank silently gets the attention within its own part of the text.

# %% [markdown]
# ## On GPUs
#
# - `context_parallel` needs the flash, the memory-efficient or the cuDNN attention, whatever its
#   message says (`torch/distributed/tensor/experimental/_context_parallel/_attention.py`: "CP only
#   supports flash attention and memory efficient attention now.").
# - By default it gathers all keys and values at once
#   (`torch/distributed/tensor/experimental/_context_parallel/_attention.py`: "rotate_method:
#   _RotateMethod = _RotateMethod.ALL_GATHER"). `set_rotate_method` makes it pass them on.

# %% [markdown]
# ## Read on
#
# A ring sends more, the more ranks it has. Next lesson:
# [ulysses](../../notebooks/model_parallel/ulysses.ipynb), which cuts attention by heads instead.
