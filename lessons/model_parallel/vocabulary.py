# %% [markdown]
"""
# vocabulary: embedding and loss with a sharded vocabulary

Each rank holds the embedding and the logits of some tokens, and no rank has all logits.

A vocabulary of 128,000 tokens makes 128,000 logits for each token of the batch, and suddenly the
head of your model takes more memory than its blocks. In this lesson you shard embedding and head by
tokens, and compute the exact loss although no rank ever has all logits. Afterwards you can say what
that sends, and why gathering the logits would be the mistake.

    python lessons/model_parallel/vocabulary.py
    torchrun --nproc-per-node 4 lessons/model_parallel/vocabulary.py
"""

# %%
from collectives import check, check_training, counting, needs, run
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from torch.distributed.tensor.parallel import loss_parallel, parallelize_module
from torch.nn.functional import cross_entropy

from collectives.pictures.memory_bars import MemoryBars
from measure import Live, held, sent
from memory import BLOCK
from model import LENGTH, LETTERS, PARAMETERS, WIDTH, Embedding, network
from one_process import UPDATES, backward, train, without_state
from tensor_parallel import Enter, Leave

# %% [markdown]
# ## The idea
#
# In [tensor_parallel](../../notebooks/model_parallel/tensor_parallel.ipynb), each rank has the
# whole embedding and the whole head. Both grow with the vocabulary, and so do the logits, because
# the head computes one for each token of the vocabulary and each position of the text. In
# [vocabulary parallel](../../docs/glossary.md#vocabulary-parallel) training, each rank has a shard
# of the vocabulary ([Megatron-LM](https://arxiv.org/abs/1909.08053)). In our model a token is a
# letter:
#
# - **Embedding**: a rank looks up the letters that it has, and puts zeros in the place of all
#   others. An `all_reduce` adds up the results.
# - **Head**: a rank computes the logits of its letters.
# - **Loss**: at each position it is `log(sum(exp(logits))) - logits[target]`. Only one rank has the
#   target, and every other rank puts a zero. An `all_reduce` adds up the sums and the targets.
#
# ![The embedding is cut between its rows, and the head between its
# columns](../../docs/ideas/vocabulary.svg)
#
# A row of the embedding and a column of the head belong to one letter, so both are cut between
# letters. The colour is that of the rank that holds the part.
#
# `exp` overflows if a logit is large. So the ranks first find the largest of all logits, by an
# `all_reduce` with MAX, and subtract it, which does not change the loss. The gradient of the logits
# is `softmax - one_hot`, which each rank computes for its letters without any call.

# %% [markdown]
# ## The code
#
# `Enter` and `Leave` come from tensor_parallel: an `all_reduce` in the backward pass, and one in
# the forward pass. The blocks are whole on every rank. `from_gathered` does what you might write
# first, and gathers all logits on each rank, so that you can compare.

# %% [markdown]
# **Predict first.** There are 128 letters. The loss needs two calls, each of which goes around the
# ring twice. Gathering the logits needs one call, which goes around once. What sends more bytes?


# %%
def my_rows(tensor):
    return tensor.chunk(dist.get_world_size())[dist.get_rank()]


def rows_of(letters, size):
    """The rows of letters in the shard of this rank, and whether they are in it; if not, row 0."""
    rows = letters - dist.get_rank() * size
    here = (rows >= 0) & (rows < size)
    return rows * here, here


class ShardedEmbedding(Embedding):
    def forward(self, letters):
        rows, here = rows_of(letters, len(self.letter.weight))
        return Leave.apply(self.letter(rows) * here.unsqueeze(-1)) + self.place.weight


class ShardedHead(torch.nn.Sequential):
    def forward(self, x):
        norm, letters = self
        return letters(Enter.apply(norm(x)))


class CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, following):
        most = logits.amax(dim=1)
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
        logits = logits - most.unsqueeze(1)
        powers = logits.exp()
        rows, here = rows_of(following, logits.shape[1])
        targets = logits.gather(1, rows.unsqueeze(1)).squeeze(1) * here
        both = torch.stack([powers.sum(dim=1), targets])
        dist.all_reduce(both)
        sums, targets = both
        ctx.save_for_backward(powers / sums.unsqueeze(1), rows, here)
        return (sums.log() - targets).mean()

    @staticmethod
    def backward(ctx, gradient):
        softmax, rows, here = ctx.saved_tensors
        one_hot = torch.zeros_like(softmax)
        one_hot[torch.arange(len(rows)), rows] = here.to(softmax.dtype)
        return gradient * (softmax - one_hot) / len(rows), None


def shard(model, optimizer=None):
    """Keep the rows of this rank, of the parameters and of Adam's state."""
    for name in ("0.letter.weight", "3.1.weight", "3.1.bias"):
        one = model.get_parameter(name)
        one.data = my_rows(one.data).clone()
        for key in ("exp_avg", "exp_avg_sq") if optimizer else ():
            optimizer.state[one][key] = my_rows(optimizer.state[one][key])
    return model


def from_shards(model, letters, following):
    CrossEntropy.apply(model(letters).flatten(0, 1), following.flatten()).backward()


def from_gathered(model, letters, following):
    n, mine = dist.get_world_size(), model(letters).flatten(0, 1)
    parts = mine.new_empty(n * len(mine), mine.shape[1])
    dist.all_gather_single(parts, mine.detach())
    logits = torch.cat(parts.chunk(n), dim=1).requires_grad_()
    cross_entropy(logits, following.flatten()).backward()
    mine.backward(logits.grad.chunk(n, dim=1)[dist.get_rank()])


@needs(ranks=2)
def vocabulary_parallel(rank, world_size, device):
    n, characters, found = world_size, 8 * LENGTH, {}
    expected = train(network(device), device)
    bars = {"one process": held(*expected)}
    shard(*expected)
    for name, loss in {"gathered": from_gathered, "shards": from_shards}.items():
        model = shard(network(device))
        model[0].__class__, model[3].__class__ = ShardedEmbedding, ShardedHead
        live = Live(model)
        with counting() as counts:
            trained = train(model, device, loss, live=live)
        check_training(trained, expected, name, same_bits=False)
        calls, sends = counts.total().calls // UPDATES, sent(counts, n) // UPDATES
        found[name] = [live.peak, calls, sends]
        bars[name] = held(*trained) | {"activations": live.peak}

    large = torch.linspace(0, 800, LETTERS, dtype=torch.float64, device=device).unsqueeze(0)
    first = torch.zeros(1, dtype=torch.int64, device=device)  # the target
    loss = CrossEntropy.apply(large.chunk(n, dim=1)[rank], first)
    check(loss, cross_entropy(large, first), "large logits", rtol=1e-9)

    cut = 2 * LETTERS * WIDTH + LETTERS
    kept = 8 * (PARAMETERS - cut + cut // n)
    check(bars["shards"]["parameters"], kept, "parameters")
    # The blocks, the head's norm and its linear layer, and the softmax of some letters or of all.
    rest = 2 * BLOCK + 2 * WIDTH + 2
    # And the loss, and its gradient.
    few, every = (8 * (characters * (rest + some) + 2) for some in (LETTERS // n, LETTERS))
    once = (n - 1) * 8 * characters // n  # to gather or to reduce_scatter one number of each
    layers = 2 * 2 * once * WIDTH
    # On a GPU, attention in float64 keeps its scores, too, so the memory is another.
    names = ["activations", "calls", "bytes sent"][int(device.type != "cpu") :]

    def named(numbers):
        return dict(zip(names, numbers[-len(names) :], strict=True))

    check(named(found["shards"]), named([few, 4, layers + 2 * 3 * once]), "shards")
    # The gathered logits, once more when they are joined, and those of this rank.
    more = 8 * (characters * (2 * LETTERS + LETTERS // n) + 1)
    wanted = [every + more, 3, layers + LETTERS * once]
    check(named(found["gathered"]), named(wanted), "gathered")
    bars["one process"]["activations"] = every + 8
    numbers = {"parameters": kept, "activations": few, "bytes sent": found["shards"][2], "calls": 4}
    sends = {"for the loss": 2 * 3 * once, "to gather": LETTERS * once}
    return numbers | sends | {"in all": MemoryBars(bars)}


# %%
if __name__ == "__main__":
    run(vocabulary_parallel, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Gathering: 196,608 bytes against 9,216. It sends 128 numbers for each character, and the loss from
# shards sends 3, each of them twice. With a larger vocabulary only gathering sends more. The other
# two of the 4 calls belong to the embedding and the head.
#
# </details>
#
# The picture shows what a rank holds. Gathering shrinks parameters, gradients and optimizer state,
# too, but it adds to the activations.

# %% [markdown]
# ### loss_parallel
#
# PyTorch's `loss_parallel` does the same for logits that are a
# [DTensor](../../docs/glossary.md#dtensor). Inside its block, `cross_entropy` and its backward pass
# compute with the shards.

# %% [markdown]
# **Predict first.** Our step had 4 calls. Does `loss_parallel` have more, and does it send more?


# %%
@needs(ranks=2)
def by_loss_parallel(rank, world_size, device):
    mesh, model = init_device_mesh(device.type, (world_size,)), network(device)
    shards = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    plan = {"0.letter": RowwiseParallel(input_layouts=Replicate()), "3.1": shards}
    parallelize_module(model, mesh, plan)

    def in_shards(model, letters, following):
        with loss_parallel():
            backward(model, letters, following)

    with counting() as counts:
        train(model, device, in_shards)
    whole = network(device)
    for mine, theirs in zip(whole.parameters(), model.parameters(), strict=True):
        one = theirs.detach()
        mine.data = one.full_tensor() if isinstance(one, DTensor) else one
    alone, _ = train(network(device), device)
    check_training(without_state(whole), without_state(alone), "loss_parallel")
    calls, sends = counts.total().calls // UPDATES, sent(counts, world_size) // UPDATES
    ring = 2 * (world_size - 1) * 8 * 8 * LENGTH // world_size
    check([calls, sends], [5, ring * (2 * WIDTH + 3)], "loss_parallel")
    return {"calls": calls, "bytes sent": sends}


# %%
if __name__ == "__main__":
    run(by_loss_parallel, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# It has 5 calls, because it reduces sums and targets one after the other. But it sends the same
# 205,824 bytes.
#
# </details>

# %%
STEPS = [vocabulary_parallel, by_loss_parallel]

# %% [markdown]
# ## The proof
#
# Every rank compares its rows, the other parameters and Adam's state with those of one process, to
# 1e-9. Bytes, calls and activations equal closed forms.

# %% [markdown]
# ## Make it wrong
#
# Make one change, run the steps, read what the proof says, and undo it.
#
# 1. **No zeros.** In `forward`, change `self.letter(rows) * here.unsqueeze(-1)` to
#    `self.letter(rows)`. It says `relative error`: ranks without the letter add their row 0.
# 2. **A maximum of its own.** In `forward`, change `dist.all_reduce(most, op=dist.ReduceOp.MAX)` to
#    `pass`. It says `relative error`: the sums of the ranks have different factors.
# 3. **A target on every rank.** In `backward`, change `here.to(softmax.dtype)` to `1.0`. It says
#    `relative error`.
# 4. **Two calls for one.** In `forward`, change `dist.all_reduce(both)` to
#    `[dist.all_reduce(one) for one in both]`. It says `[shards`. The model is right.

# %% [markdown]
# ## Read on
#
# What remains on every rank are the norms, and the activations around them. Next lesson:
# [sequence_parallel](../../notebooks/model_parallel/sequence_parallel.ipynb).
