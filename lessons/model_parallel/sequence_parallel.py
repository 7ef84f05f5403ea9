# %% [markdown]
"""
# sequence_parallel: tensor parallelism that also shards the text

The all_reduce of a tensor parallel block is cut in two halves, and each rank has a part of the text
between them.

You cut the weights over eight GPUs, and the activations hardly shrink: every rank still computes
the same norms for all tokens, and keeps what they need. In this lesson you get rid of these copies,
and pay no byte for it, because a `reduce_scatter` and an `all_gather` send together what the
`all_reduce` sent. At the end you know what a rank then keeps, and which gradients you must not
forget.

    python lessons/model_parallel/sequence_parallel.py
    torchrun --nproc-per-node 4 lessons/model_parallel/sequence_parallel.py
"""

# %%
from collectives import check, check_training, counting, needs, run
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel
from torch.distributed.tensor.parallel import PrepareModuleOutput, parallelize_module
from torch.nn.functional import cross_entropy, gelu, linear
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from collectives.pictures.memory_bars import MemoryBars
from slices import Slice, Slices
from measure import Live, held, sent
from model import HEADS, LENGTH, LETTERS, WIDTH, Block, network
from one_process import UPDATES, train, without_state
from tensor_parallel import sliced, sliced_training

# %% [markdown]
# ## The idea
#
# In [tensor_parallel](../../notebooks/model_parallel/tensor_parallel.ipynb), each rank has a slice
# of the weights, but all tokens. So all ranks compute the same norms, embedding and head, and keep
# the same activations. None of these layers needs more than one token at a time. In [sequence
# parallel](../../docs/glossary.md#sequence-parallel) training, each rank therefore computes them
# for its part of the text ([Korthikanti et al.](https://arxiv.org/abs/2205.05198)).
#
# Where does the text have to be whole again? An `all_reduce` is a `reduce_scatter`, after which
# each rank has its part of the sum, and an `all_gather` of these parts, and the norm fits between
# the two. For each pair of linear layers this means:
#
# | operation | forward | backward |
# |---|---|---|
# | `Gather`, before a pair | `all_gather` | `reduce_scatter` |
# | `Scatter`, behind it | `reduce_scatter` | `all_gather` |

# %% [markdown]
# ## The code
#
# The slices of the weights are those of tensor_parallel. What is new is that each rank takes its
# part of a batch in dimension 1, which is the text.


# %%
def all_gather(part):
    """All of the text, from the parts of all ranks."""
    n = dist.get_world_size()
    parts = part.new_empty(n * len(part), *part.shape[1:])  # one behind the other in dimension 0
    dist.all_gather_single(parts, part.contiguous())
    return torch.cat(parts.chunk(n), dim=1)


def reduce_scatter(x):
    """The part of this rank of the sum over all ranks."""
    n = dist.get_world_size()
    parts = torch.cat(x.chunk(n, dim=1))
    part = parts.new_empty(len(x), *parts.shape[1:])
    dist.reduce_scatter_single(part, parts)
    return part


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, part):
        return all_gather(part)

    @staticmethod
    def backward(ctx, gradient):
        return reduce_scatter(gradient)


class Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return reduce_scatter(x)

    @staticmethod
    def backward(ctx, gradient):
        return all_gather(gradient)


class SequenceBlock(Block):
    def forward(self, part):
        part = part + self.summed(self.out, self.attention(Gather.apply(self.norm1(part))))
        return part + self.summed(self.down, gelu(self.up(Gather.apply(self.norm2(part)))))

    def summed(self, rows, x):
        return Scatter.apply(linear(x, rows.weight)) + rows.bias


# %% [markdown]
# ## Training
#
# Each rank has the loss of its part of the text. The loss of one process is the mean of these, so a
# rank divides its own by n.
#
# The parameters that every rank has are easily forgotten: norms, the biases of `out` and `down`,
# embedding and head. A tensor parallel rank uses them for the whole text, but here a rank uses them
# for its part only, so the ranks must add up their gradients.

# %% [markdown]
# **Predict first.** A step of tensor_parallel called `all_reduce` 8 times, and sent 786,432 bytes.
# How many calls has a step here, and does it send more bytes?


# %%
@needs(ranks=2)
def sequence_parallel(rank, world_size, device):
    n, mine = world_size, torch.arange(LENGTH).chunk(world_size)[rank]
    model, _ = sliced(device)
    all_of_it = Live(model)
    with counting() as reduced:
        bars = {"tensor parallel": held(*train(model, device, live=all_of_it))}

    model, slices = sliced(device)
    for block in model[1:3]:
        block.__class__ = SequenceBlock
    embedding = model[0]
    embedding.forward = lambda letters: embedding.letter(letters) + embedding.place.weight[mine]
    on_every_rank = [name for name, one in slices.items() if one.shape == one.whole]

    def on_my_part(model, letters, following):
        loss = cross_entropy(model(letters[:, mine]).flatten(0, 1), following[:, mine].flatten())
        (loss / n).backward()
        gradients = [model.get_parameter(name).grad for name in on_every_rank]
        flat = parameters_to_vector(gradients)  # to reduce all in one call
        dist.all_reduce(flat)
        vector_to_parameters(flat, gradients)

    live = Live(model)
    with counting() as counts:
        trained = train(model, device, on_my_part, live=live)
    expected = sliced_training(*train(network(device), device))
    check_training(trained, expected, "sequence parallel", same_bits=False)

    # Of each block, the whole text is the input of two pairs. The rest is a part of the text,
    # and four numbers of the loss: itself, divided, its gradient, and one that it keeps.
    tokens = 8 * LENGTH // n
    blocks = 8 * LENGTH * 2 * 2 * WIDTH + tokens * 2 * (14 * WIDTH + 4 + HEADS)
    # With many ranks the peak is before the head: the last sum is whole until it is scattered.
    most = 8 * (blocks + max(8 * LENGTH * WIDTH, tokens * (2 * WIDTH + 2 + LETTERS) + 4))
    if device.type == "cpu":  # on a GPU, attention in float64 keeps its scores, too
        check(live.peak, most, "activations")
    bars["tensor parallel"]["activations"] = all_of_it.peak
    bars["sequence parallel"] = held(*trained) | {"activations": most}
    of_gradients = counts.pop("c10d.all_reduce")
    check(of_gradients.calls, UPDATES, "sums of gradients")
    calls, size = counts.total().calls // UPDATES, sent(counts, n) // UPDATES
    check([calls, size], [2 * 8, sent(reduced, n) // UPDATES], "calls and bytes")
    return {"calls": calls, "bytes sent": size, "in all": MemoryBars(bars)}


# %%
if __name__ == "__main__":
    run(sequence_parallel, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 16, because there are two calls for each `all_reduce`. But together they send the same 786,432
# bytes. The table does not count the one `all_reduce` for the parameters that every rank has.
#
# </details>
#
# The picture shows the gain, which is fewer activations. What remains whole is the input of each
# pair, after the `all_gather`.

# %% [markdown]
# ### SequenceParallel
#
# In PyTorch's plan for [DTensors](../../docs/glossary.md#dtensor), `SequenceParallel` is the style
# of the norms. For the other layers `Shard(1)` says that it is the text that is cut.


# %%
@needs(ranks=2)
def norms_by_dtensor(rank, world_size, device):
    mesh = init_device_mesh(device.type, (world_size,))
    model, norm, text = network(device), SequenceParallel(), Shard(1)
    plan = dict.fromkeys(("query", "key", "value", "up"), ColwiseParallel(input_layouts=text))
    plan |= dict.fromkeys(("out", "down"), RowwiseParallel(output_layouts=text))
    for block in model[1:3]:
        parallelize_module(block, mesh, plan | {"norm1": norm, "norm2": norm})
    parts = PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=text)
    head = ColwiseParallel(input_layouts=text, output_layouts=Replicate())
    parallelize_module(model, mesh, {"0": parts, "3.0": norm, "3.1": head})
    outputs = []
    model[1].norm1.register_forward_hook(lambda layer, inputs, output: outputs.append(output))
    with counting() as counts:
        train(model, device)
    whole = network(device)
    for mine, theirs in zip(whole.parameters(), model.parameters(), strict=True):
        one = theirs.detach()
        mine.data = one.full_tensor() if isinstance(one, DTensor) else one
    alone, _ = train(network(device), device)
    check_training(without_state(whole), without_state(alone), "SequenceParallel")
    calls = {name.partition(".")[2]: one.calls // UPDATES for name, one in counts.items()}
    # The head and the output of the embedding add some, and Adam uses a gradient three times.
    right = {"all_gather_single": 2 * (4 + 2) + 3, "reduce_scatter_single": 2 * (2 + 4) + 1}
    check(calls, right | {"all_reduce": 5 * 2 * 3}, "calls, SequenceParallel")
    of_batch, mine = (tuple(one.shape[:2]) for one in (outputs[0], outputs[0].to_local()))
    part, axes = Slice((0, rank * mine[1]), mine, of_batch), ("text of the batch", "character")
    return calls | {"at a norm": Slices({"the output of norm1": part}, axes)}


# %%
if __name__ == "__main__":
    run(norms_by_dtensor)

# %% [markdown]
# Here nobody can forget a gradient: the 5 norms have a weight and a bias each, whose gradients are
# parts of a sum, and DTensor adds them up when Adam uses them. That has a price, because Adam uses
# each one 3 times, which makes 30 calls.

# %%
STEPS = [sequence_parallel, norms_by_dtensor]

# %% [markdown]
# ## The proof
#
# Every rank compares its parameters and Adam's state with those of one process, to 1e-9. It
# compares calls and bytes with those counted in a step of tensor_parallel, and activations with a
# closed form.

# %% [markdown]
# ## Make it wrong
#
# Make one change, run the steps, read what the proof says, and undo it.
#
# 1. **Norms forgotten.** In `on_my_part`, change `name in on_every_rank]` to
#    `name in on_every_rank if "norm" not in name]`. It says `relative error`.
# 2. **No sum in backward.** In `backward`, change `return reduce_scatter(gradient)` to
#    `return gradient.chunk(dist.get_world_size(), dim=1)[dist.get_rank()]`. It says
#    `relative error`.
# 3. **A bias on every rank.** In `summed`, change
#    `Scatter.apply(linear(x, rows.weight)) + rows.bias` to
#    `Scatter.apply(linear(x, rows.weight, rows.bias))`. It says `relative error`: n biases.
# 4. **The norm of the whole text.** In `forward`, change `Gather.apply(self.norm1(part))` to
#    `self.norm1(Gather.apply(part))`. It says `[activations`. The model is right.

# %% [markdown]
# ## Read on
#
# You can now train with shards, and compute with slices. What if one job does the first and another
# one the second? Next lesson: [reshard](../../notebooks/model_parallel/reshard.ipynb).
