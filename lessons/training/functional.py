# %% [markdown]
"""
# functional: collectives with a gradient, inside the forward pass

A model that sums or gathers in its forward pass needs gradients that travel back to all ranks. The
batch norm of the last lesson was such a model. `dist.all_reduce` cannot do that, because it
overwrites a tensor, and autograd does not know how to undo it. The functional collectives can. They
return a new tensor, and each of them has a backward pass, which communicates, too.

At the end you will be able to say which gradient such a call gives you, why a loss that every rank
computes makes it n times too large, when the result is there, and what `torch.compile` makes of
the call.

    python lessons/training/functional.py
    torchrun --nproc-per-node 4 lessons/training/functional.py
"""

# %%
import warnings
from collectives import check, counting, needs, run
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

# %% [markdown]
# ## The idea
#
# Think of all ranks as one program, with the inputs of all ranks and one loss: the sum of the
# losses that the ranks compute. Each rank calls `backward()` on its own loss, and gets the gradient
# of *that sum* for its own input. For this, the gradients must travel the way of the data
# backwards. What one rank sent to all comes back as a sum from all, so the backward pass of an
# all_gather is a reduce_scatter.
#
# The functions `all_gather_single` and `reduce_scatter_single` have these names since torch 2.13:
# before, they were `all_gather_tensor` and `reduce_scatter_tensor`.
#
# The module has an underscore in torch 2.13, because its names may still change. Use it all the
# same, because `torch.distributed.nn.functional`, which older code uses for this, is deprecated.
# After torch 2.14 the module is called `torch.distributed.functional_collectives` ([its
# documentation](https://github.com/pytorch/pytorch/blob/main/docs/source/distributed.functional_collectives.md)).

# %% [markdown]
# ## The code
#
# ### Gradients through four calls
#
# Each rank has a tensor of n numbers, and its loss is the weighted sum of the squares of what it
# gets from a call. The weight is another one on each rank, so that no gradient is right by
# accident. `one_process` makes the four results without communication, from the inputs of all
# ranks.


# %%
def inputs_of_all(n, device):
    return [(torch.arange(n, device=device) + 10.0 * r).requires_grad_() for r in range(n)]


def loss_of(rank, result):
    return (rank + 1) * result.square().sum()


def four_calls(x, world=None):
    world = world or dist.group.WORLD
    yield "all_reduce", functional.all_reduce(x, "sum", world)
    yield "all_gather_single", functional.all_gather_single(x, 0, world)
    yield "reduce_scatter_single", functional.reduce_scatter_single(x, "sum", 0, world)
    yield "all_to_all_single", functional.all_to_all_single(x, None, None, world)


def one_process(inputs):
    """For each call, what every rank gets."""
    n, total = len(inputs), sum(inputs)
    yield [total] * n
    yield [torch.cat(inputs)] * n
    yield total.chunk(n)
    yield [torch.cat([x.chunk(n)[rank] for x in inputs]) for rank in range(n)]


# %% [markdown]
# **Predict first.** Which call is made in the backward pass of `all_reduce`, `all_gather`,
# `reduce_scatter` and `all_to_all`?


# %%
def gradients_through_calls(rank, world_size, device):
    x = inputs_of_all(world_size, device)[rank]
    found, gradients = {}, []
    for name, result in four_calls(x):
        with counting() as counts:
            (gradient,) = torch.autograd.grad(loss_of(rank, result), x)
        made = [call for call in counts if call.startswith("_c10d_functional.")]
        found[name] = ", ".join(made).replace("_c10d_functional.", "")
        gradients.append(gradient)
    # proof
    inputs, expected = inputs_of_all(world_size, device), []
    for results in one_process(inputs):
        loss = sum(loss_of(r, result) for r, result in enumerate(results))
        expected.append(torch.autograd.grad(loss, inputs)[rank])
    check(gradients, expected, "the gradients of one process")
    back = ["all_reduce", "reduce_scatter_single", "all_gather_single", "all_to_all_single"]
    check([*found.values()], back, "the calls of the backward passes")
    return {f"backward of {name}": backward for name, backward in found.items()}


# %%
if __name__ == "__main__":
    run(gradients_through_calls, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# The one that brings the gradients back: all_reduce and all_to_all are their own backward passes,
# and all_gather and reduce_scatter are each other's. An all_reduce in the forward pass thus costs
# two. All ranks must call `backward()`, in the same order, or the ranks that do will wait.
#
# </details>

# %% [markdown]
# ### The loss of one rank, or of all?
#
# A contrastive loss compares each example with those of all ranks, so every rank
# [gathers](../../notebooks/all_gather.ipynb) them. After that, a rank can compute the rows of its
# own examples, or the whole loss. Here it is the sum of the squares of all products of two
# examples, and rank r has one example. The gathering can be functional. Or it can be
# `dist.all_gather`, which returns numbers without gradients: then the rank puts its own example,
# which has one, back in its place. That makes four programs. OpenCLIP offers all of them, by its
# options `local_loss` and `gather_with_grad`.

# %% [markdown]
# **Predict first.** Two of the four programs give the gradient of one process. Which loss belongs
# to the functional call, and which one to the own example that is put back: that of the own rows,
# or the whole one?


# %%
def gathered(x, rank, world_size, way):
    if way == "functional":
        return functional.all_gather_single(x, 0, dist.group.WORLD)
    pieces = [torch.empty_like(x) for _ in range(world_size)]
    dist.all_gather(pieces, x.detach())
    pieces[rank] = x
    return torch.cat(pieces)


def contrastive(rows, examples):
    return (rows @ examples.T).square().sum()


def loss_of_one_or_of_all(rank, world_size, device):
    everything = torch.tensor([[1.0, r] for r in range(world_size)], device=device)
    got = {}
    for way in ("functional", "own put back"):
        for loss in ("own rows", "all rows"):
            x = everything[rank : rank + 1].clone().requires_grad_()
            examples = gathered(x, rank, world_size, way)
            contrastive(x if loss == "own rows" else examples, examples).backward()
            got[f"{way}, {loss}"] = x.grad[0]
    # proof
    everything.requires_grad_()
    (whole,) = torch.autograd.grad(contrastive(everything, everything), everything)
    right = whole[rank]
    check(got["functional, own rows"], right, "each rank the loss of its rows")
    check(got["own put back, all rows"], right, "each rank the whole loss, own example put back")
    check(got["functional, all rows"], world_size * right, "n times the gradient")
    too_small = torch.equal(got["own put back, own rows"], right)
    check(too_small, world_size == 1, "what the other ranks' rows say is missing")
    return {name: gradient.tolist() for name, gradient in got.items()}


# %%
if __name__ == "__main__":
    run(loss_of_one_or_of_all, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# The functional call needs the own rows, and the own example that is put back needs the whole loss:
# the first and the last row. With the functional call the losses of all ranks count together, so
# each rank must add only its own share. If every rank computes the whole loss, it counts n times,
# and the gradient is n times too large: rank 0 gets 64 where 16 is right. With its own example put
# back, a rank sees only its own loss, so that must be the whole one; with its own rows alone, what
# the rows of other ranks say about its example is missing, and no factor repairs that. Then think
# of what comes after: DDP divides the sum over all ranks by n, so under DDP the second program is
# the right one.
#
# </details>

# %% [markdown]
# ### What the plain call does to a gradient
#
# And if you simply use the call that you know? `dist.all_reduce` writes the sum into the tensor,
# and autograd takes no notice. So the gradient of a rank has the weight of its own loss, and lacks
# those of all other ranks. torch 2.13 warns about it when `backward()` comes to this call.


# %%
@needs(ranks=2, backend="gloo")
def plain_call(rank, world_size, device):
    x = torch.tensor([10.0**rank], device=device, requires_grad=True)
    total = 2 * x
    dist.all_reduce(total)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        loss_of(rank, total).backward()

    # proof
    summed = 2 * sum(10.0**r for r in range(world_size))
    check(total, torch.tensor([summed]), "all_reduce")
    right = 2 * 2 * summed * sum(range(1, world_size + 1))
    check(x.grad, torch.tensor([2 * 2 * summed * (rank + 1)]), "the gradient of the own loss only")
    check(len(warned), 1, "warnings")
    return {"gradient": x.grad.item(), "right": right}


# %%
if __name__ == "__main__":
    run(plain_call)

# %% [markdown]
# On each rank the gradient is one to four tenths of the right one, because the losses have the
# weights 1, 2, 3 and 4, which are ten together. The sum itself is right, so the loss looks fine
# while the model learns something else.

# %% [markdown]
# ### The result is not there yet
#
# The functional calls have one more surprise: they return at once. The result is an
# `AsyncCollectiveTensor`, a tensor that stands for the memory `elem`, into which the call is still
# writing. The first operation that needs the numbers waits for them, and gives a plain tensor. A
# view needs no numbers, so it does not wait. In this step the last rank makes its call only after
# all ranks have met in a barrier of another group; before this barrier, the other ranks look at
# what they have.


# %%
@needs(ranks=2, backend="gloo")  # NCCL can hang if ranks use two groups in different orders
def result_is_late(rank, world_size, device):
    looked = dist.new_group()
    last = rank == world_size - 1
    x = torch.full((4,), 10.0**rank, device=device)
    if last:
        dist.barrier(group=looked)
    result = functional.all_reduce(x, "sum", dist.group.WORLD)
    table = result.view(2, 2)
    early = [type(result).__name__, type(table).__name__, result.completed]
    memory = result.elem.clone()
    if not last:
        dist.barrier(group=looked)
    total = result + 0  # the first use: waits
    # proof
    expected = torch.full((4,), sum(10.0**r for r in range(world_size)))
    check(
        [total, table + 0, x], [expected, expected.view(2, 2), torch.full((4,), 10.0**rank)], "sum"
    )
    check(early, ["AsyncCollectiveTensor", "AsyncCollectiveTensor", False], "before the first use")
    check([type(total).__name__, result.completed], ["Tensor", True], "after it")
    if not last:
        check(torch.equal(memory, expected), False, "the sum was there early")
    return {"result": early[0], "view": early[1], "sum": total}


# %%
if __name__ == "__main__":
    run(result_is_late)

# %% [markdown]
# So you need not wait by hand as long as torch's operations use the result. But code that does not
# go through them, such as a kernel of your own that gets the address of the memory, reads what
# happens to lie there. `result.wait()` returns a plain tensor that is complete.

# %% [markdown]
# ### In a compiled program
#
# `torch.compile` turns a function into a graph, and a call in a graph must be a function from
# tensors to a tensor. That is what these calls were made for. The compiler in this step only notes
# the functions of the graph and returns it as it is; a real one can move other work between the
# call and the place where its result is needed.

# %% [markdown]
# **Predict first.** The function has two operations: it multiplies, and it reduces. How many does
# its graph have?


# %%
def functional_sum(x):
    return functional.all_reduce(2 * x, "sum", dist.group.WORLD)


@needs(ranks=2)
def compiled(rank, world_size, device):
    noted, gradients = [], []

    def compiler(graph, inputs):
        calls = [node.target for node in graph.graph.nodes if node.op == "call_function"]
        noted.extend(call.__name__ for call in calls)
        return graph

    in_graph = torch.compile(functional_sum, backend=compiler, fullgraph=True)
    for program in (functional_sum, in_graph):
        x = torch.tensor([rank + 1.0], device=device, requires_grad=True)
        loss_of(rank, program(x)).backward()
        gradients.append(x.grad)
    # proof
    weights = sum(range(1, world_size + 1))
    right = torch.tensor([2.0 * 2 * 2 * weights * weights])
    check(gradients, [right, right], "gradients")
    check(noted, ["mul", "all_reduce", "wait_tensor"], "the graph")
    return {"as it is": gradients[0].item(), "compiled": gradients[1].item(), "graph": noted}


# %%
if __name__ == "__main__":
    run(compiled, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Three, because a graph has no tensor that waits when somebody uses it: `wait_tensor` stands in it
# as an operation. The gradient is the same as before. All ranks must compile the same calls in the
# same order.
#
# </details>

# %%
STEPS = [
    gradients_through_calls,
    loss_of_one_or_of_all,
    plain_call,
    result_is_late,
    compiled,
]

# %% [markdown]
# ## The proof
#
# The gradients of the first two steps are compared with those of one process that has the inputs of
# all ranks, and computes the sum of all losses; those of the later steps with a formula. All
# numbers are whole, and small enough for float32, so they must be equal to the last bit.

# %% [markdown]
# ## Make it wrong
#
# Make one change, run the steps, read what the proof says, and undo it.
#
# 1. **Every rank has the loss of rank 0.** In `gradients_through_calls`, change `loss_of(rank,
#    result), x)` to `loss_of(0, result), x)`. It says `[the gradients of one process`.
# 2. **Every rank has the whole loss.** In `loss_of_one_or_of_all`, change `contrastive(x if loss ==
#    "own rows" else examples, examples)` to `contrastive(examples, examples)`. It says `rank 0/4:
#    got [64.0, 96.0], should be [16.0, 24.0] [each rank the loss of its rows`.
# 3. **The reduction is left out.** In `functional_sum`, change `functional.all_reduce(2 * x, "sum",
#    dist.group.WORLD)` to `2 * x`. It says `rank 0/4: got [[8.0], [8.0]], should be [[800.0],
#    [800.0]] [gradients`.
# 4. **The plain call is made functional.** In `plain_call`, change `dist.all_reduce(total)` to
#    `total = functional.all_reduce(total, "sum", dist.group.WORLD)`. It says `rank 0/4: got
#    [88880.0], should be [8888.0] [the gradient of the own loss only`. This change repairs the
#    program: only the proof that it was wrong fails.

# %% [markdown]
# ## Pitfalls
#
# - Only sums have a backward pass (`torch/distributed/_functional_collectives.py`: "all_reduce
#   backward only supports 'sum' reduction, got"). For a mean, sum and divide by n.
# - A result that nobody uses is never waited for. When its process ends, torch says so: "there are
#   still 3 unwaited collective calls".
# - `dist.all_gather_single` with an input that requires a gradient fails on gloo, on some ranks or
#   on all: "A view was created in no_grad mode and is being modified inplace". Pass `x.detach()`,
#   or use the functional call.
# - `torch.compile` replaces a plain `dist.all_reduce` in its graph by the functional one. So the
#   gradient of `plain_call` is right in a compiled function, and wrong in the same function
#   without the compiler.

# %% [markdown]
# ## Read on
#
# Every gradient arrived here. Next lesson:
# [unused_parameters](../../notebooks/training/unused_parameters.ipynb), whose gradients never come,
# while DDP waits for them.
