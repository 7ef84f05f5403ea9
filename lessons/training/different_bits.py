# %% [markdown]
"""
# different_bits: different results on one GPU and on several

Several ranks train the model of one process, but not to the last bit, because the last bits depend
on the order of additions.

You compare your four ranks with one process, and after some hundred steps the parameters have
nothing in common. Is your program wrong, or is this rounding? At the end of this lesson you can
tell the two apart, you know where the difference comes from, and you can make any number of ranks
add to the same bits.

    python lessons/training/different_bits.py
    torchrun --nproc-per-node 4 lessons/training/different_bits.py
"""

# %%
from functools import partial
from itertools import accumulate
from math import isclose
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
# their four sums, so the results differ in the last digits.
#
# The next step starts from parameters that differ a little, and can make the difference smaller or
# larger. With a high learning rate it grows from step to step, until the two models have little in
# common. float64 has 9 digits more than float32, so its difference starts a billion times smaller.
#
# This is why the proofs of this chapter use float64 and at most 50 steps. Rounding then stays below
# 1e-12, and a wrong program is off by 1e-4 or more.

# %% [markdown]
# ## The code
#
# `train` is that of [one_process](../../notebooks/training/one_process.ipynb), but it returns the
# parameters after each step. The images take the dtype of the model.


# %%
def train(model, backward, batches, device, lr):
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
# Each batch of 64 images is cut into 8 parts, however many ranks there are. Rank r computes the
# parts r, r + n, r + 2 n and so on, and one `all_reduce` adds the sums of all ranks, as one long
# tensor.


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
# We run the same training on all ranks and, with whole batches, in one process, and compare after
# each step. The error is the norm of the difference, divided by the norm of the parameters. `eps`
# is the distance from 1 to the next larger number: 1.2e-7 in float32, 2.2e-16 in float64. Because
# the learning rate decides whether a difference grows, we try 0.7, and 0.1 once.

# %% [markdown]
# **Predict first.** float32 has about 7 digits. After 200 steps, in how many of them do the two
# trainings still agree?


# %%
def different_bits(rank, world_size, device):
    batches = (shuffled().split(64)[:-1] * 8)[:200]
    curves = {}
    for dtype, lr in ((torch.float32, 0.7), (torch.float64, 0.7), (torch.float32, 0.1)):
        ours = train(network(0, device).to(dtype), on_my_parts, batches, device, lr)
        one = train(network(0, device).to(dtype), partial(in_parts, parts=1), batches, device, lr)
        errors = [((a - b).norm() / b.norm()).item() for a, b in zip(ours, one, strict=True)]
        eps = torch.finfo(dtype).eps
        found = [errors[49] < 1e3 * eps, errors[-1] < 1e3 * eps, errors[-1] > 1e6 * eps]
        check(found, [True, lr == 0.1, lr == 0.7], f"{dtype}, {lr}")
        curves[f"{dtype}, {lr}"] = errors
    return {"errors": Curve(curves, "relative error", log=True)}


# %%
if __name__ == "__main__":
    run(different_bits, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# In none with the learning rate 0.7: the error is above 1e6 * 1.2e-7 = 0.12. With 0.1 it stays
# small, because a step hardly enlarges a difference. The table shows no errors, because they differ
# from machine to machine.
#
# </details>

# %% [markdown]
# ### The order of additions
#
# Where does the first difference come from? Rank r has the number (r + 1) / 10. Every rank collects
# all of them, and adds them in two orders.

# %% [markdown]
# **Predict first.** 0.1 + 0.2 + 0.3 + 0.4 is 1.0. Is 0.4 + 0.3 + 0.2 + 0.1 more, less or the same?


# %%
def order_of_additions(rank, world_size, device):
    dist.all_gather_object(found := [None] * world_size, (rank + 1) / 10)
    up, down = list(accumulate(found)), list(accumulate(reversed(found)))
    check(isclose(up[-1], down[-1], rel_tol=1e-15), True, "another order")
    if world_size == 4:  # with 2 ranks there is one order; with others the bits may be equal
        check(up[-1] == down[-1], False, "equal bits")
    return {"first rank first": repr(up), "last rank first": repr(down)}


# %%
if __name__ == "__main__":
    run(order_of_additions, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Less: 0.9999999999999999. `all_reduce` promises no order: it depends on the number of ranks, on
# the length of the tensor and on the backend. But on gloo all ranks get the same bits, which
# `check_training` compares in every lesson of this chapter.
#
# </details>

# %% [markdown]
# ### Gradients on a grid
#
# If the order matters only because sums are rounded, use sums that need no rounding. A hook rounds
# the gradient of each part to a multiple of `2**-40`, about 1e-12, before PyTorch adds it to
# `.grad`. A float64 has 53 binary digits, so the sum of such numbers is exact as long as it is
# below `2**13`, and an exact sum does not depend on the order of its terms.

# %% [markdown]
# **Predict first.** The network has 2,410 parameters. How many of them have the bits of one process
# after 28 steps?


# %%
def on_the_grid(rank, world_size, device):
    histories = []
    for backward in (on_my_parts, in_parts):
        model = network(0, device)
        for parameter in model.parameters():
            parameter.register_hook(lambda gradient: (gradient * 2**40).round() / 2**40)
        histories.append(train(model, backward, shuffled().split(64)[:-1], device, 0.7))
    equal = (histories[0][-1] == histories[1][-1]).sum().item()
    check(equal, 2410, "parameters with equal bits")
    return {"parameters with equal bits": equal}


# %%
if __name__ == "__main__":
    run(on_the_grid, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# All 2,410, with any number of ranks up to the number of parts. The price is that each gradient is
# off by up to half of `2**-40`, and that the number of parts must never change.
#
# </details>

# %%
STEPS = [different_bits, order_of_additions, on_the_grid]

# %% [markdown]
# ## The proof
#
# `different_bits` checks that the error is below 1,000 `eps` after 50 steps, and after 200 steps
# above 1,000,000 `eps` with the learning rate 0.7 and below 1,000 `eps` with 0.1.
#
# In your own tests, compare parameters and optimizer state in float64 after a few steps. The copies
# on all ranks start equal and take equal steps, so there compare the bits.

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
# Make one change, run the steps, read what the proof says, and undo it.
#
# 1. **Nothing is added.** In `on_my_parts`, change `dist.all_reduce(flat :=
#    parameters_to_vector(gradients))` to `flat = parameters_to_vector(gradients)`. It says `got
#    [False, False, True], should be [True, False, True] [torch.float32`.
# 2. **Each part counts as a whole batch.** In `in_parts`, change `/ parts).backward()` to `/
#    1).backward()`. It says `got [False, False, True], should be [True, False, True]
#    [torch.float32`.
# 3. **The grid is too fine.** In `on_the_grid`, change `(gradient * 2**40).round() / 2**40` to
#    `(gradient * 2**60).round() / 2**60`. It says `should be 2410 [parameters with equal bits`. A
#    sum now needs more than 53 digits.

# %% [markdown]
# ## Pitfalls
#
# - There is nothing wrong with training in float32: each of the two models is as good as the other.
#   Only the comparison needs float64, because after hundreds of steps in float32 rounding looks
#   like a mistake.
# - Do not compare losses in a few digits: two different models can print the same ones.

# %% [markdown]
# ## Read on
#
# - D. Goldberg, [*What Every Computer Scientist Should Know About Floating-Point
#   Arithmetic*](https://docs.oracle.com/cd/E19957-01/806-3568/ncg_goldberg.html) (1991).
#
# With the same ranks and the same order, the bits are the same again. Next lesson:
# [checkpoint](../../notebooks/training/checkpoint.ipynb), a training that stops and continues with
# the bits that it would have had.
