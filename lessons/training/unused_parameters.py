# %% [markdown]
"""
# unused_parameters: find_unused_parameters in DDP

DDP waits for the gradient of every parameter, so if one takes no part in the loss, the next forward
pass raises an error.

You wrap a model with two heads in DDP, and the second step fails with `Expected to have finished
reduction in the prior iteration`. Every page that you find says to set
`find_unused_parameters=True`, and it helps. At the end of this lesson you know what the message
means, what the option then does to your gradients, and what it costs in each step.

    python lessons/training/unused_parameters.py
    torchrun --nproc-per-node 4 lessons/training/unused_parameters.py
"""

# %%
from collectives import check, check_training, counting, digits, run
from rank_grid import RankGrid
from one_process import train
import re
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP

# %% [markdown]
# ## The idea
#
# DDP reduces a bucket when it has the gradients of all parameters in it. A parameter that takes no
# part in the loss gets no gradient, so its bucket is never full. DDP notices that in the next
# forward pass:
#
# ```text
# RuntimeError: Expected to have finished reduction in the prior iteration before starting a new
# one. This error indicates that your module has parameters that were not used in producing loss.
# ... Parameter indices which did not receive grad for rank 0: 4 5
# ```
#
# (Some pages quote it as "Expected to have gradients for all parameters", which torch does not
# say.)
#
# Many networks have such parameters: a head (the last layers, for one task) that is no longer
# trained, a layer that is sometimes skipped, an expert that gets no token. Often a parameter is
# unused on one rank and used on another. With `find_unused_parameters=True`, DDP searches the graph
# of each forward pass, and reduces zeros for what this rank does not use.

# %% [markdown]
# ## The code
#
# This network has two heads: head 0 names the digit, head 1 tells even from odd. The first label of
# a rank's shard decides which head it trains, so the ranks use different heads in the same step.


# %%
class TwoTasks(nn.Module):
    def __init__(self, device):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(64, 32)
        self.heads = nn.ModuleList([nn.Linear(32, 10), nn.Linear(32, 2)])
        self.double().to(device)

    def forward(self, images, task):
        return self.heads[task](self.body(images).relu())


def batches():
    return torch.randperm(1797, generator=torch.Generator().manual_seed(0)).split(60)[:-1]


# %%
def task_loss(model, images, labels):
    task = int(labels[0]) % 2
    return cross_entropy(model(images, task), labels % (10, 2)[task])


# %% [markdown]
# One process computes the loss of each shard with its own task, and takes the mean.

# %% [markdown]
# **Predict first.** In a step, one of four ranks uses head 1, that of even and odd. Does DDP take
# its gradient as it is, or does it make it smaller?


# %%
def on_my_shard(model, images, labels):
    rank, n = dist.get_rank(), dist.get_world_size()
    loss = task_loss(model, images[rank::n], labels[rank::n])
    loss.backward()
    return loss.item()


def one_process(model, images, labels):
    n = dist.get_world_size()
    loss = sum(task_loss(model, images[r::n], labels[r::n]) for r in range(n)) / n
    loss.backward()
    return loss.item()


def unused_parameters(rank, world_size, device):
    model = DDP(TwoTasks(device), find_unused_parameters=True)
    tasks = []
    model.register_forward_pre_hook(lambda model, inputs: tasks.append(inputs[1]))
    trained, _ = train(model, on_my_shard, batches(), device)

    expected, _ = train(TwoTasks(device), one_process, batches(), device)
    check_training(trained, expected, "two tasks")
    rows = {f"head {head}": [task == head for task in tasks] for head in (0, 1)}
    legend = (
        "Filled: the rank used this head in this step. Look for columns with one filled box: there "
        "the head's gradient is divided by all ranks, though one rank used it."
    )
    return {"steps": RankGrid(rows, "step", legend, shows="Which head each rank uses in each step")}


# %%
if __name__ == "__main__":
    run(unused_parameters, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# It makes it smaller. DDP divides by n, not by the number of ranks that used the head, because all
# other ranks add zeros and count, too. Our one process does the same. So a head that few ranks use
# gets small gradients, and the third wrong program below tries to make up for that.
#
# </details>

# %% [markdown]
# ### The error
#
# What happens without the option? Here DDP computes two gradients of the same images. The first
# label of rank r is r, so even ranks name digits. The parameters are numbered in the order of
# `model.parameters()`: the body has 0 and 1, head 0 has 2 and 3, and head 1 has 4 and 5.

# %% [markdown]
# **Predict first.** Which parameters does the error name on rank 1?


# %%
def second_forward(rank, world_size, device):
    images, labels = digits(device)
    model = DDP(TwoTasks(device))
    on_my_shard(model, images, labels)
    try:
        on_my_shard(model, images, labels)
    except RuntimeError as error:
        said = str(error).partition(" before")[0]
        found = re.search(r"did not receive grad for rank \d+: ([\d ]+)", str(error))[1].strip()
    unused = 1 - rank % 2  # the head of the other task
    check(found, f"{2 + 2 * unused} {3 + 2 * unused}", "the error names")
    check(said, "Expected to have finished reduction in the prior iteration", "the error says")
    return {"without a gradient": found}


# %%
if __name__ == "__main__":
    run(second_forward, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 2 and 3, the head that rank 1 did not use: each rank names its own. The surprise is the first
# step. It raised no error, but its only bucket was not reduced, so each rank was left with
# gradients of its own. `TORCH_DISTRIBUTED_DEBUG=INFO` adds the names
# ([training](../../notebooks/mistakes/training.ipynb) shows them).
#
# </details>

# %% [markdown]
# ### What the options cost
#
# The option is not free, and there is a second one. `static_graph=True` promises that every step
# uses the same parameters, so here rank r always has task r modulo 2. We train four steps with each
# option, and `counting` counts the calls of each step.

# %% [markdown]
# **Predict first.** Which option needs fewer calls in the long run?


# %%
def cost_of_options(rank, world_size, device):
    def counted(*arguments):
        with counting() as counts:
            loss = on_my_shard(*arguments)
        calls.append(counts.total().calls)
        return loss

    found = {}
    same = [torch.arange(60)] * 4  # the first label of rank r is r
    expected, _ = train(TwoTasks(device), one_process, same, device)
    for option in ("find_unused_parameters", "static_graph"):
        model, calls = DDP(TwoTasks(device), **{option: True}), []
        trained, _ = train(model, counted, same, device)
        check_training(trained, expected, option)
        found[option] = calls
    check(found, {"find_unused_parameters": [2] * 4, "static_graph": [2, 1, 3, 1]}, "calls")
    return found


# %%
if __name__ == "__main__":
    run(cost_of_options, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# `static_graph`. With `find_unused_parameters` there are always 2 calls: the gradients, and one
# number for each parameter that says whether any rank used it. With `static_graph` this happens in
# the first step only. In the third step two broadcasts agree on new buckets, and from then on 1
# call is left.
#
# </details>

# %%
STEPS = [unused_parameters, second_forward, cost_of_options]

# %% [markdown]
# ## The proof
#
# `check_training` compares both heads and their momentum with those of one process. In a step in
# which no rank uses a head, such as head 1 in step 5, it has no gradient, and the optimizer leaves
# it alone, in one process and with DDP.

# %% [markdown]
# ## Make it wrong
#
# Make one change, run the steps, read what the proof says, and undo it.
#
# 1. **The inner model is called.** In `on_my_shard`, change `task_loss(model, images[rank::n]` to
#    `task_loss(model.module, images[rank::n]`. It says `rank 1/4: heads.1.bias.momentum_buffer:
#    relative error 5`. There is no error, because DDP takes no part.
# 2. **A zero for every parameter.** In `on_my_shard`, change `labels[rank::n])` to
#    `labels[rank::n]) + 0 * sum(p.sum() for p in model.parameters())` and
#    `find_unused_parameters=True` to `find_unused_parameters=False`. It says `rank 0/4:
#    body.bias.momentum_buffer: relative error 0.06`. This is a common cure instead of the option.
#    But a head that no rank trains in a step gets the gradient 0 instead of none, and momentum
#    moves it on.
# 3. **A gradient for each task.** In `on_my_shard`, change `labels[rank::n])` to `labels[rank::n])
#    * n`. It says `rank 0/4: body.bias.momentum_buffer: relative error 5`. Head 1 is then right
#    where one rank of four trains it, and the body is wrong.

# %% [markdown]
# ## Pitfalls
#
# - The first step raises no error, so test with two.
# - If the error comes with `find_unused_parameters=True`, the network returns what DDP cannot
#   search, such as an object of your own. Return tensors, in lists or dicts.
# - To freeze a layer, set `requires_grad = False` before DDP is made.
# - If you break the promise of `static_graph=True`, DDP raises an error in the first step in which
#   a rank uses other parameters.
# - If every parameter is used, leave the option out, because it costs a search and a call in each
#   step.

# %% [markdown]
# ## Read on
#
# [Notes on DDP](https://docs.pytorch.org/docs/stable/notes/ddp.html), in PyTorch's documentation:
# how it searches the graph.
#
# All lessons so far compared several ranks with one process, within a limit. Next lesson:
# [different_bits](../../notebooks/training/different_bits.ipynb), why there must be a limit.
