# %% [markdown]
"""
# tensor_parallel: tensor parallelism, each rank keeps a slice of every layer

Each rank holds a slice of every weight of a block, and computes with it for the whole batch.

One layer of your model does not fit, or your batch has fewer sequences than you have GPUs. Then it
does not help to divide layers or batches, and you must divide the products themselves. In this
lesson you cut linear layers by columns and by rows, and attention by heads, and find out where the
two `all_reduce` belong that this needs: one in the forward pass, the other in the backward pass.

    python lessons/model_parallel/tensor_parallel.py
    torchrun --nproc-per-node 4 lessons/model_parallel/tensor_parallel.py
"""

# %%
from collectives import check, check_training, counting, needs, run
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import gelu, linear

from slices import Slice, Slices
from measure import Live, held, sent
from model import HEADS, LENGTH, LETTERS, PARAMETERS, WIDTH, Block, network
from one_process import UPDATES, train, without_state

# %% [markdown]
# ## The idea
#
# In [fully_sharded](../../notebooks/model_parallel/fully_sharded.ipynb), ranks compute with whole
# layers. If one layer does not fit, cut its weight. A linear layer computes `x @ W`, and there are
# two ways to cut W for two ranks:
#
# - **By columns**: `x @ [W0 W1] = [x @ W0, x @ W1]`. Each rank needs all of `x`, and has some
#   columns of the result.
# - **By rows**: `[x0 x1] @ [W0; W1] = x0 @ W0 + x1 @ W1`. Each rank needs only its columns of `x`,
#   and the sum over all ranks is the result.
#
# The two fit together. Cut `up` by columns and `down` by rows, and each rank already has the
# columns that `down` needs, because gelu is element-wise. In the same way, cut `query`, `key` and
# `value` by columns, so that a rank has whole heads, and `out` by rows. So each of the two pairs
# needs only one `all_reduce`, at its end ([Megatron-LM](https://arxiv.org/abs/1909.08053)).
#
# ![The weight up is cut between its columns, and the weight down between its
# rows](../../docs/ideas/tensor_parallel.svg)
#
# The colour is that of the rank that holds this part of a weight.
#
# So "model parallelism needs only `send` and `recv`, and data parallelism collectives" is true of
# [stages](../../notebooks/send_recv.ipynb), and not of slices.
#
# In `backward()`, each rank has the gradient of `x` from its own columns, but needs the sum of all
# ranks. So each pair also needs one `all_reduce` at its beginning:
#
# | operation | forward | backward |
# |---|---|---|
# | `Enter`, before a pair | nothing | `all_reduce` |
# | `Leave`, behind it | `all_reduce` | nothing |

# %% [markdown]
# ## The code
#
# `nn.Linear` holds W transposed, so the columns of W are dimension 0 of its weight. The bias of
# `up` is cut, too, but the bias of a layer that is cut by rows must be added once, after the sum.
# All ranks need the same batch.

# %% [markdown]
# **Predict first.** In data parallel training, a step called `all_reduce` once for each parameter.
# How often does it call it here, with two blocks?


# %%
class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class SlicedBlock(Block):
    def forward(self, x):
        x = x + self.summed(self.out, self.attention(Enter.apply(self.norm1(x))))
        return x + self.summed(self.down, gelu(self.up(Enter.apply(self.norm2(x)))))

    def summed(self, rows, x):
        return Leave.apply(linear(x, rows.weight)) + rows.bias


def slice_of(name, tensor):
    """What this rank holds of a parameter: a view."""
    rank, n = dist.get_rank(), dist.get_world_size()
    layer = name.split(".")[1]
    if layer in ("query", "key", "value", "up"):
        return tensor.chunk(n)[rank]
    if layer in ("out", "down") and tensor.dim() == 2:
        return tensor.chunk(n, dim=1)[rank]
    return tensor


def sliced(device):
    model = network(device)
    for block in model[1:3]:
        block.__class__ = SlicedBlock  # the same modules, with another forward
    slices = {}
    for name, one in model.named_parameters():
        mine = slice_of(name, one.data)
        slices[name] = Slice.of(mine, one.data)
        one.data = mine.clone()
    return model, slices


def sliced_training(model, optimizer):
    """What a rank must hold of the training of one process."""
    for name, one in model.named_parameters():
        one.data = slice_of(name, one.data)
        for key in ("exp_avg", "exp_avg_sq"):
            optimizer.state[one][key] = slice_of(name, optimizer.state[one][key])
    return model, optimizer


@needs(ranks=2)
def tensor_parallel(rank, world_size, device):
    model, slices = sliced(device)
    live = Live(model)
    with counting() as counts:
        mine = train(model, device, live=live)
    expected = sliced_training(*train(network(device), device))
    check_training(mine, expected, "tensor parallel", same_bits=False)

    # Of a block: weights and the bias of `up`. The other parameters are on every rank.
    cut = 2 * (12 * WIDTH**2 + 4 * WIDTH)
    kept = PARAMETERS - cut + cut // world_size
    check(held(*mine)["parameters"], 8 * kept, "parameters")
    block = 4 * WIDTH + 4 + (12 * WIDTH + HEADS) // world_size
    characters = 8 * LENGTH
    most = 8 * (characters * (2 * block + 2 * WIDTH + 2 + LETTERS) + 3)
    if device.type == "cpu":  # on a GPU, attention in float64 keeps its scores, too
        check(live.peak, most, "activations")
    calls, sends = counts.total().calls // UPDATES, sent(counts, world_size) // UPDATES
    check(calls, 2 * 4, "calls of a step")
    check(sends, calls * 2 * (world_size - 1) * 8 * characters * WIDTH // world_size, "bytes sent")
    weights = {n[2:]: one for n, one in slices.items() if n[0] == "1" and len(one.shape) == 2}
    numbers = {"parameters": 8 * kept, "activations": most, "bytes sent": sends, "calls": calls}
    return numbers | {"weights of a block": Slices(weights)}


# %%
if __name__ == "__main__":
    run(tensor_parallel, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 8 times: each block has two pairs, and each pair has one call in the forward pass and one in the
# backward pass. These are fewer calls than one for each parameter, but each of them reduces numbers
# for the whole batch, and no rank can go on without its result. This is why tensor parallel ranks
# need fast links.
#
# </details>

# %% [markdown]
# ### DTensor
#
# PyTorch does the same from a plan. `parallelize_module` turns the weights into
# [DTensors](../../docs/glossary.md#dtensor), and its hooks on each layer call `all_reduce`.

# %% [markdown]
# **Predict first.** `query`, `key`, `value` and `up` have hooks each. Does a step make more calls
# than our 8, and if so, where?


# %%
@needs(ranks=2)
def by_dtensor(rank, world_size, device):
    mesh = init_device_mesh(device.type, (world_size,))
    model = network(device)
    plan = dict.fromkeys(("query", "key", "value", "up"), ColwiseParallel())
    plan |= dict.fromkeys(("out", "down"), RowwiseParallel())
    for block in model[1:3]:
        parallelize_module(block, mesh, plan)
    with counting() as counts:
        train(model, device)
    calls = counts["_c10d_functional.all_reduce"].calls // UPDATES
    check(calls, 2 * (2 + 4), "calls of a step, DTensor")
    check(counts.total().calls, UPDATES * calls, "all calls, DTensor")
    weights = {}
    for name, one in model[1].named_parameters():
        if one.dim() == 2:
            mine, cut = one.to_local(), one.placements[0].dim
            first = tuple(rank * mine.shape[cut] if i == cut else 0 for i in range(2))
            weights[name] = Slice(first, tuple(mine.shape), tuple(one.shape))
    whole = network(device)
    for mine, theirs in zip(whole.parameters(), model.parameters(), strict=True):
        one = theirs.detach()
        mine.data = one.full_tensor() if isinstance(one, DTensor) else one
    alone, _ = train(network(device), device)
    check_training(without_state(whole), without_state(alone), "DTensor")
    return {"calls": calls, "weights of a block": Slices(weights)}


# %%
if __name__ == "__main__":
    run(by_dtensor, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# It makes 12. In the backward pass, the gradients of the inputs of `query`, `key` and `value` are
# reduced one by one, while in our block autograd adds them up before `Enter` reduces them.
#
# </details>

# %% [markdown]
# Engines that answer with a model that is cut like this use the same two pairs for each token, in
# the forward pass only. What this lesson does not show is their cache: the keys and values of
# earlier tokens, which a rank keeps for its own heads, so that it needs no call for them. Nor does
# it show ranks that read the prompt while others write the answer, and send them that cache.

# %%
STEPS = [tensor_parallel, by_dtensor]

# %% [markdown]
# ## The proof
#
# Every rank compares its slices and Adam's state with those of one process, to 1e-9. Bytes and
# calls follow from the shapes.

# %% [markdown]
# ## On GPUs
#
# - Adam computes the new values of all parameters together there, which raises `got mixed
#   torch.Tensor and DTensor` if only some of them are DTensors. So `train` passes `foreach=False`
#   (`torch/distributed/tensor/__init__.py`: "so that we will try to use foreach over the for-loop
#   implementation on CUDA").

# %% [markdown]
# ## Make it wrong
#
# Make one change, run the steps, read what the proof says, and undo it.
#
# 1. **No all_reduce in backward.** In `backward`, change `dist.all_reduce(gradient)` to `pass`. It
#    says `relative error`.
# 2. **No all_reduce in forward.** In `forward`, change `dist.all_reduce(x)` to `pass`. It says
#    `relative error`.
# 3. **A bias on every rank.** In `summed`, change `Leave.apply(linear(x, rows.weight)) + rows.bias`
#    to `Leave.apply(linear(x, rows.weight, rows.bias))`. It says `relative error`: n biases.
# 4. **Reduced too often.** In `summed`, change `Enter.apply(self.norm2(x))` to
#    `Enter.apply(Enter.apply(self.norm2(x)))`. It says `relative error`: n times the gradient.

# %% [markdown]
# ## Write it yourself
#
# In your folder of [exercises](../../README.md#exercises):
#
# ```sh
# collectives practice column_parallel
# ```

# %% [markdown]
# ## Read on
#
# Embedding, head and norms are still whole on every rank. Next lesson:
# [vocabulary](../../notebooks/model_parallel/vocabulary.ipynb), which cuts the first two.
