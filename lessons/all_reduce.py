# %% [markdown]
"""
# all_reduce

Every rank gives a tensor, and every rank ends up with the sum (or maximum, product, ...) of all of them, in place.

You will see the sum, the other reductions and what a backend does that lacks one, a reduction that runs in the background, and
three things that are built from it: a softmax, a norm and a weighted mean over data that no single rank holds.

    python lessons/all_reduce.py
    torchrun --nproc-per-node 4 lessons/all_reduce.py

To run it, clone the repository and type `make tour`, or `pip install -e .` where you already have torch.
"""

# %%
from collectives import check
from collectives.lesson import run
import torch
import torch.distributed as dist

# %% [markdown]
# ## Worked numbers
#
# Four ranks. Rank r starts with `[r, 10 * r, 1]`; everyone ends with the element-wise sum.
#
# | rank | before | after |
# |---|---|---|
# | 0 | [0, 0, 1] | [6, 60, 4] |
# | 1 | [1, 10, 1] | [6, 60, 4] |
# | 2 | [2, 20, 1] | [6, 60, 4] |
# | 3 | [3, 30, 1] | [6, 60, 4] |

# %% [markdown]
# ## The code
#
# `all_reduce` overwrites its argument: `x` is input and output at once.


# %%
def all_reduce(rank, world_size, device):
    x = torch.tensor([rank, 10 * rank, 1], device=device)
    before = x.clone()

    dist.all_reduce(x, op=dist.ReduceOp.SUM)

    total = world_size * (world_size - 1) // 2  # 0 + 1 + ... + (n - 1)
    check(x, torch.tensor([total, 10 * total, world_size]), "all_reduce(SUM)")
    return {"before": before, "after": x}


# %%
if __name__ == "__main__":
    run(all_reduce)

# %% [markdown]
# ### Other reductions
#
# The reduction is applied element by element, so one call can answer several questions: here the lowest, the highest and the product.


# %%
def reductions(rank, world_size, device):
    low, high, product = (torch.tensor([rank + 1], device=device) for _ in range(3))

    dist.all_reduce(low, op=dist.ReduceOp.MIN)
    dist.all_reduce(high, op=dist.ReduceOp.MAX)
    dist.all_reduce(product, op=dist.ReduceOp.PRODUCT)

    check(low, torch.tensor([1]), "all_reduce(MIN)")
    check(high, torch.tensor([world_size]), "all_reduce(MAX)")
    factorial = torch.arange(1, world_size + 1).prod().reshape(1)
    check(product, factorial, "all_reduce(PRODUCT)")
    return {"own": rank + 1, "MIN": low, "MAX": high, "PRODUCT": product}


# %%
if __name__ == "__main__":
    run(reductions)
