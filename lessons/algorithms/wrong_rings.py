# %% [markdown]
"""
# wrong_rings: how to test a collective that you wrote

How to test a collective that you have written or copied: two published rings, and what finds them.

The ring that you have just pasted into your program prints the right sum. Is it right, then? Not
yet: of two published rings, one adds nothing from any other rank and can still print the right sum,
and one is right but sends n times as many bytes as it has to. At the end of this lesson you know
the two checks that find them: numbers that differ by rank, and a count of the bytes.

    python lessons/algorithms/wrong_rings.py
    torchrun --nproc-per-node 4 lessons/algorithms/wrong_rings.py
"""

# %%
from collectives import StepLog, check, run
import torch

from ring import exchange, numbers

# %% [markdown]
# ## A test that a wrong ring passes
#
# PyTorch's tutorial on distributed programs had a wrong ring for years
# ([reported](https://github.com/pytorch/pytorch/issues/31572) in 2019, and
# [corrected](https://github.com/pytorch/tutorials/pull/1039) in 2020). This one repeats its mistake
# in our words. It has two buffers, which are empty at first: one leaves while the other is filled,
# and then they change places. But what it adds up are the two arguments, whose names are similar.
#
# The step tests the ring twice. The first test calls it in place, and every rank passes ones. In
# the second test every rank passes numbers of its own, whose sums are 1111, 2222, 3333 and 4444,
# and asks for them in another tensor.


# %%
def tutorials_all_reduce(send, recv, rank, n):
    buffers, total = [torch.zeros_like(send), torch.zeros_like(send)], send.clone()
    right, left = (rank + 1) % n, (rank - 1) % n
    with StepLog([total, *buffers]) as steps:
        for k in range(n - 1):
            leaving, arriving = k % 2, (k + 1) % 2
            exchange(buffers[leaving], right, buffers[arriving], left)
            total += (recv, send)[k % 2]
            steps.add([total, *buffers], sent=1 + leaving, to=right, at=1 + arriving)
    recv.copy_(total)
    return steps


# %% [markdown]
# **Predict first.** Only zeros travel around this ring. Which of the two tests does it pass, and
# why?


# %%
def wrong_tensor(rank, world_size, device):
    ones = torch.ones(world_size, dtype=torch.int64, device=device)
    tutorials_all_reduce(ones, ones, rank, world_size)
    x = numbers(rank, world_size, device)
    result = torch.zeros_like(x)
    steps = tutorials_all_reduce(x, result, rank, world_size)

    check(ones, torch.full_like(ones, world_size), "the sum of ones, in place")
    wrong = x * (1 + (world_size - 1) // 2)
    check(result, wrong, "what the wrong ring returns")
    return {"ones": ones, "own numbers": result, "sent": steps}


# %%
if __name__ == "__main__":
    run(wrong_tensor, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# It passes the first one: every rank has 4 ones in its sum, as it should, but they are its own.
# Because all ranks pass the same numbers, nobody can tell. With numbers of its own, rank 0 gets 2
# where the sum is 1111, and no other rank's digit is in it. So give each rank its own numbers, and
# compare every element on every rank with a closed form. The first change below shows what `check`
# says then. The picture has a column for the sum and one for each buffer.
#
# </details>

# %% [markdown]
# ## Right sums, and too many bytes
#
# With such numbers you find a wrong sum. But a result says nothing about how it was made. The ring
# of a popular course sent the whole tensor in each step
# ([reported](https://github.com/callummcdougall/ARENA_3.0/pull/407) in 2026). After n - 1 steps
# every rank has the sum, and then the sums travel around the ring once more. This is that ring:

# %% [markdown]
# **Predict first.** The lesson before cuts the same 4 numbers into pieces, and a rank sends 48
# bytes in 6 steps. How many bytes does a rank send here, and which of its 6 steps could you leave
# out?


# %%
def whole_tensors(rank, world_size, device):
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    total = numbers(rank, world_size, device)
    passing, arriving = total.clone(), torch.empty_like(total)
    with StepLog([total]) as steps:
        for k in range(2 * (world_size - 1)):
            exchange(passing, right, arriving, left)
            passing.copy_(arriving)
            if k < world_size - 1:
                total += arriving
            if k == world_size - 2:
                passing.copy_(total)
            steps.add([total], sent=0, to=right)

    check(total, numbers(0, world_size, device) * int("1" * world_size), "all_reduce")
    check(steps.bytes, 2 * (world_size - 1) * total.nbytes, "bytes sent")
    return {"after": total, "sent": steps}


# %%
if __name__ == "__main__":
    run(whole_tensors, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# It sends 192 bytes, `6 * 4 * 8`, which is four times as many. With n ranks it is n times as many.
# You could leave out the last three steps, which change nothing in the picture. The result would
# never show any of this, but a count does, so the steps of this chapter check their bytes, too.
#
# </details>

# %%
STEPS = [wrong_tensor, whole_tensors]

# %% [markdown]
# ## Change and try
#
# 1. In `wrong_tensor`, change `check(result, wrong,` to `check(result, numbers(0, world_size,
#    device) * 1111,`. This is what a proof says of the tutorial's ring.
#    <details><summary>Answer</summary> You get `rank 0/4: got [2, 4, 6, 8], should be [1111, 2222,
#    3333, 4444] [what the wrong ring returns, int64[4], gloo]`. The error names the rank, and what
#    it got. </details>
# 2. In `whole_tensors`, change `range(2 * (world_size - 1))` to `range(2 * world_size)`. Which
#    check notices the two more steps? <details><summary>Answer</summary> You get `rank 0/4: got
#    256, should be 192 [bytes sent, gloo]`. The sums are right. </details>

# %% [markdown]
# ## Read on
#
# - The lesson [ring](../../notebooks/algorithms/ring.ipynb): `numbers` and `exchange`, and the ring
#   that is right.
#
# A right ring sends as few bytes as it can, but in `2 (n - 1)` steps, one after the other. Next
# lesson: [doubling](../../notebooks/algorithms/doubling.ipynb), which needs only `log2(n)`.
