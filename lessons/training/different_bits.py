# %% [markdown]
"""
# different_bits

Several ranks train the model of one process, but not to the last bit. The last bits depend on the
order of additions.

You will see a difference that grows with the steps, a sum that depends on its order, and gradients
on a grid, which any number of ranks adds to the same bits.

    python lessons/training/different_bits.py
    torchrun --nproc-per-node 4 lessons/training/different_bits.py
"""

# %%
from functools import partial
from collectives import Curve, check, digits, run
from one_process import network, shuffled
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

# %% [markdown]
# ## The idea
#
# A floating-point number is rounded after each addition, so a sum depends on the order of its
# terms. One process adds the gradients of 64 images in one order. Four ranks add 16 each, and then
# their four sums. The results differ in the last digits, and both are right.
#
# The next step starts from parameters that differ a little. It can make the difference smaller or
# larger. With a high learning rate the difference grows from step to step, until the two models
# have little in common. float64 has 9 digits more than float32. So its difference starts a billion
# times smaller, and it takes many more steps to become visible.
#
# This is why the proofs of this chapter use float64 and at most 50 steps. Rounding then stays below
# 1e-12, and a wrong program is off by 1e-4 or more.

# %% [markdown]
# ## The code
#
# `train` is that of [one_process](../../notebooks/training/one_process.ipynb), but it returns the
# parameters after each step, not the loss. The images take the dtype of the model. The
# learning rate is 0.7, seven times that of data_parallel.


# %%
def train(model, backward, batches, device, lr=0.7):
    torch.set_num_threads(1)  # the ranks of one machine share its cores
    images, labels = digits(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    history = []
    for batch in batches:
        optimizer.zero_grad()
        backward(model, images[batch].to(model[0].weight.dtype), labels[batch])
        optimizer.step()
        history.append(parameters_to_vector(model.parameters()).detach())
    return history


# %% [markdown]
# A batch of 64 images is cut into 8 parts, whatever the number of ranks. Rank r computes the parts
# r, r + n, r + 2 n and so on, and `.grad` adds them up. Then one `all_reduce` adds the sums of all
# ranks: `parameters_to_vector` copies all gradients into one long tensor, and
# `vector_to_parameters` copies them back.


# %%
def in_parts(model, images, labels, rank=0, n=1, parts=8):
    for part in range(rank, parts, n):
        (cross_entropy(model(images[part::parts]), labels[part::parts]) / parts).backward()


def on_my_parts(model, images, labels):
    in_parts(model, images, labels, dist.get_rank(), dist.get_world_size())
    gradients = [parameter.grad for parameter in model.parameters()]
    dist.all_reduce(flat := parameters_to_vector(gradients))
    vector_to_parameters(flat, gradients)


# %% [markdown]
# ### The difference grows
#
# The same training runs on all ranks and, with whole batches, in one process. The error is the norm
# of the difference, divided by the norm of the parameters. `eps` is the distance from 1 to the next
# larger number: 1.2e-7 in float32, 2.2e-16 in float64.


# %%
def different_bits(rank, world_size, device):
    batches = (shuffled().split(64)[:-1] * 8)[:200]
    curves = {}
    for dtype, eps in ((torch.float32, 1.2e-7), (torch.float64, 2.2e-16)):
        ours = train(network(0, device).to(dtype), on_my_parts, batches, device)
        one = train(network(0, device).to(dtype), partial(in_parts, parts=1), batches, device)
        errors = [((a - b).norm() / b.norm()).item() for a, b in zip(ours, one, strict=True)]
        check([errors[49] < 1e3 * eps, errors[-1] > 1e6 * eps], [True, True], f"{dtype}")
        curves[str(dtype)] = errors
    return {"errors": Curve(curves, "relative error", log=True)}


# %% [markdown]
# **Predict first.** float32 has about 7 digits. After 200 steps, in how many of them do the two
# trainings still agree?

# %%
if __name__ == "__main__":
    run(different_bits)

# %% [markdown]
# <details><summary>Answer</summary>
#
# In none: the error is above 1e6 * 1.2e-7 = 0.12. These are two different models. The picture shows
# both errors after each step. Both grow in the same way, but that of float64 starts a billion times
# smaller. So float64 needs more steps to come to the same point. The table shows no errors, because
# they differ from machine to machine.
#
# </details>

# %% [markdown]
# ### The order of additions
#
# Rank r has (r + 1) / 10. Every rank collects all of them, and adds them in two orders.


# %%
def order_of_additions(rank, world_size, device):
    mine = torch.tensor((rank + 1) / 10, dtype=torch.float64, device=device)
    dist.all_gather(found := [torch.empty_like(mine) for _ in range(world_size)], mine)
    up, down = sum(found), sum(reversed(found))
    check(up, down, "another order", rtol=1e-15)
    return {"first rank first": repr(up.item()), "last rank first": repr(down.item())}


# %% [markdown]
# **Predict first.** 0.1 + 0.2 + 0.3 + 0.4 is 1.0. How much is 0.4 + 0.3 + 0.2 + 0.1? Write the
# number down.

# %%
if __name__ == "__main__":
    run(order_of_additions)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 0.9999999999999999. `all_reduce` does not promise an order. The order depends on the number of
# ranks, on the length of the tensor and on the backend. But on gloo all ranks get the same bits:
# `check_training` compares them in every lesson of this chapter.
#
# </details>

# %% [markdown]
# ### Gradients on a grid
#
# Round each gradient to a multiple of `2**-40`, about 1e-12. A float64 has 53 binary digits, so the
# sum of such numbers is exact as long as it is below `2**13`. An exact sum does not depend on the
# order of its terms. Here a hook does the rounding. A hook is a function that PyTorch calls at a
# certain moment: this one is called with the gradient of each part, before it is added to `.grad`.


# %%
def on_the_grid(rank, world_size, device):
    histories = []
    for backward in (on_my_parts, in_parts):
        model = network(0, device)
        for parameter in model.parameters():
            parameter.register_hook(lambda gradient: (gradient * 2**40).round() / 2**40)
        histories.append(train(model, backward, shuffled().split(64)[:-1], device))
    equal = (histories[0][-1] == histories[1][-1]).sum().item()
    check(equal, 2410, "parameters with equal bits")
    return {"parameters with equal bits": equal}


# %% [markdown]
# **Predict first.** The network has 2,410 parameters. How many of them have the bits of one process
# after 28 steps? Write the number down.

# %%
if __name__ == "__main__":
    run(on_the_grid)

# %% [markdown]
# <details><summary>Answer</summary>
#
# All 2,410, with any number of ranks up to the number of parts. (One more rank would have no part.)
# This has a price. Each gradient is off by up to half of `2**-40`. And the parts belong to the
# program: their number must stay the same, whatever the number of ranks.
#
# </details>

# %%
STEPS = [different_bits, order_of_additions, on_the_grid]

# %% [markdown]
# ## The proof
#
# `different_bits` checks that the error is below 1,000 `eps` after 50 steps and above 1,000,000
# `eps` after 200, in both dtypes. `on_the_grid` compares bits.
#
# What to compare:
#
# - Parameters and optimizer state, in float64 after a few steps: the relative error of the norm.
#   Rounding is far below 1e-9, and mistakes are far above.
# - The copies on all ranks: bits. They start equal and take equal steps.
# - A training on a grid: bits, whatever the number of ranks.
#
# What not to compare:
#
# - Parameters in float32 after hundreds of steps. There, rounding looks like a mistake.
# - Losses in a few digits. Two different models can print the same ones.

# %% [markdown]
# ## On GPUs
#
# - Some operations add in an order that [differs from run to
#   run](https://docs.pytorch.org/docs/stable/notes/randomness.html).
#   `torch.use_deterministic_algorithms(True)` replaces them (`torch/__init__.py`: "if only
#   nondeterministic algorithms are available they will throw a :class:`RuntimeError`").

# %% [markdown]
# ## Make it wrong
#
# Each of these is one change. Predict what goes wrong. Then make it, run the steps, read what the
# proof says, and undo it.
#
# 1. **Nothing is added.** In `on_my_parts`, change `dist.all_reduce(flat :=
#    parameters_to_vector(gradients))` to `flat = parameters_to_vector(gradients)`.
#
#    <details><summary>Answer</summary>
#
#    It says `got [False, True], should be [True, True] [torch.float32`.
#
#    </details>
#
# 2. **Each part counts as a whole batch.** In `in_parts`, change `/ parts).backward()` to `/
#    1).backward()`.
#
#    <details><summary>Answer</summary>
#
#    It says `got [False, True], should be [True, True] [torch.float32`.
#
#    </details>
#
# 3. **No grid.** In `on_the_grid`, change `(gradient * 2**40).round() / 2**40` to `gradient`.
#
#    <details><summary>Answer</summary>
#
#    It says `should be 2410 [parameters with equal bits`.
#
#    </details>
#
# 4. **The grid is too fine.** In `on_the_grid`, change `(gradient * 2**40).round() / 2**40` to
#    `(gradient * 2**60).round() / 2**60`.
#
#    <details><summary>Answer</summary>
#
#    It says `should be 2410 [parameters with equal bits`. A sum now needs more than 53 digits.
#
#    </details>

# %% [markdown]
# ## Pitfalls
#
# - There is nothing wrong with training in float32: each of the two models is as good as the other.
#   Only the comparison needs float64.
# - More ranks, another batch size for each process, another number of threads or another machine:
#   each changes the order of additions, and so the bits.

# %% [markdown]
# ## Write it yourself
#
# Does the difference always grow? Train with the learning rate 0.1 in float32, 200 steps. Prove
# that the error stays below 1e-5.
#
# <details><summary>Answer</summary>
#
# ```python
# def low_learning_rate(rank, world_size, device):
#     batches = (shuffled().split(64)[:-1] * 8)[:200]
#     ours, one = (
#         train(network(0, device).float(), backward, batches, device, lr=0.1)
#         for backward in (on_my_parts, partial(in_parts, parts=1))
#     )
#     error = ((ours[-1] - one[-1]).norm() / one[-1].norm()).item()
#     check(error < 1e-5, True, "float32, learning rate 0.1")
#     return {"below 1e-5": error < 1e-5}
# ```
#
# ```text
# low_learning_rate: proved on all 4 ranks
#   rank  below 1e-5
#   0     True
#   1     True
#   2     True
#   3     True
# ```
#
# No: with this learning rate a step hardly enlarges a difference, and all that adds up is the
# rounding of each step.
#
# </details>

# %% [markdown]
# ## Read on
#
# - D. Goldberg, [*What Every Computer Scientist Should Know About Floating-Point
#   Arithmetic*](https://docs.oracle.com/cd/E19957-01/806-3568/ncg_goldberg.html) (1991).
# - [Reproducibility](https://docs.pytorch.org/docs/stable/notes/randomness.html), in PyTorch's
#   documentation: which operations are deterministic.
#
# In PyTorch's documentation:
#
# - [`all_gather`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_gather)
# - [`all_reduce`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_reduce)
# - [`get_rank`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.get_rank)
# - [`get_world_size`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.get_world_size)
#
# Next lesson: [checkpoint](../../notebooks/training/checkpoint.ipynb), a training that stops and
# continues.
