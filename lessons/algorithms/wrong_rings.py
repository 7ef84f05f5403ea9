# %% [markdown]
"""
# wrong_rings

Two rings that others have published: one returns wrong sums, the other sends too much.

You will see what a proof says of each of them, and why comparing the result is not enough.

    python lessons/algorithms/wrong_rings.py
    torchrun --nproc-per-node 4 lessons/algorithms/wrong_rings.py
"""

# %%
from collectives import StepLog, check, run
import torch

from ring import exchange, numbers

# %% [markdown]
# ## A ring that adds the wrong tensor
#
# PyTorch's tutorial on distributed programs had such a ring for years
# ([reported](https://github.com/pytorch/pytorch/issues/31572) in 2019, and
# [corrected](https://github.com/pytorch/tutorials/pull/1039) in 2020). Here is its mistake in our
# words. There are two buffers, which are empty at first: one leaves while the other is filled, and
# then they change places. But the program adds the arguments, not the buffers with similar names.


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
# **Predict first.** Rank 0 has 1, 2, 3 and 4, and the sums over four ranks are 1111, 2222, 3333 and
# 4444. What does rank 0 get for the first of them? Write the number down.


# %%
def wrong_tensor(rank, world_size, device):
    x = numbers(rank, world_size, device)
    result = torch.zeros_like(x)
    steps = tutorials_all_reduce(x, result, rank, world_size)

    wrong = x * (1 + (world_size - 1) // 2)
    check(result, wrong, "what the wrong ring returns")
    return {"after": result, "sent": steps}


# %%
if __name__ == "__main__":
    run(wrong_tensor)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 2: nothing of another rank is in it. Only zeros travel, and in the second of three steps the rank
# adds its own tensor once more. If all ranks hold the same numbers, as in many examples, the result
# looks plausible. The picture has a column for the sum and one for each buffer. `check` compares
# every element on every rank with a closed form: see the first change below.
#
# </details>

# %% [markdown]
# ## A ring that is right, and sends too much
#
# A popular course had a ring of another kind
# ([reported](https://github.com/callummcdougall/ARENA_3.0/pull/407) in 2026). It sends the whole
# tensor in each step. After n - 1 steps every rank has the sum, and then the sums travel around the
# ring once more.

# %% [markdown]
# **Predict first.** The tensor has 4 numbers of 8 bytes. How many bytes does a rank send in these 6
# steps? Write the number down.


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
    run(whole_tensors)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 192, which is `6 * 4 * 8`. The result is right, so a test of the result alone finds nothing.
# In the picture, the last three steps change nothing. With n ranks this ring sends n times as much
# as it has to.
#
# The course's ring also hung: it started `isend` and `irecv` one by one, and on NCCL each waits for
# the one before it. `batch_isend_irecv` lets NCCL start them together ([its
# manual](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage/p2p.html) on
# `ncclGroupStart`). What happens on gloo if all ranks send first is in
# [messages](../../notebooks/mistakes/messages.ipynb).
#
# </details>

# %%
STEPS = [wrong_tensor, whole_tensors]

# %% [markdown]
# ## Change and try
#
# 1. In `wrong_tensor`, change `check(result, wrong,` to `check(result, numbers(0, world_size,
#    device) * 1111,`. This is what the proof says of the tutorial's ring.
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
# - The lesson [messages](../../notebooks/mistakes/messages.ipynb): what happens if all ranks send
#   first.
#
# Next lesson: [doubling](../../notebooks/algorithms/doubling.ipynb), with fewer steps.
