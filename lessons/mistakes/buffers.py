# %% [markdown]
"""
# buffers: tensors read too early, or overwritten too early

A collective writes into memory that you gave it, at a time that it chooses.

You are used to functions that return a new tensor when it is ready. Here you allocate the result
yourself, and the call may still be writing when it returns. These seven programs look too early or
in the wrong place, or allocate the wrong size, and six of them get wrong numbers without an error.
At the end of this lesson you know when you may read a tensor, and which tensors to pass.

Find each mistake yourself first: read "You see" and the program, and say which line is wrong. Then
open the output, the answer, and the cure below it.

    python lessons/mistakes/buffers.py
    torchrun --nproc-per-node 4 lessons/mistakes/buffers.py
"""

# %%
from collectives import check, cure, mistake, run, span
import time
import torch
import torch.distributed as dist

# %% [markdown]
# ## Program 1: six numbers for rank 1
#
# **You see.** The receiver dies by SIGABRT (exit status -6), without an exception or a traceback,
# while the sender notices nothing. The receiver's stderr says:
#
# ```text
# terminate called after throwing an instance of 'gloo::EnforceNotMet'
#   what():  [enforce fail at .../gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 48 vs 32. Received data size
#   doesn't match expected size. Is there a distributed collective mismatch in your code?
# ```


# %%
@mistake("dies", ranks=2)
def six_numbers(rank, world_size, device):
    if rank == 0:
        dist.send(torch.arange(6, device=device), dst=1)
    else:
        x = torch.full((4,), -1, device=device)
        dist.recv(x, src=0)
        check(x, torch.arange(6), "recv")


# %%
if __name__ == "__main__":
    run(six_numbers, folded=True)

# %% [markdown]
# <details><summary>What is wrong?</summary>
#
# **Cause: the buffer is too short.** gloo sends the length along with the message, but `recv`
# cannot return it. So gloo ends a process whose buffer is too short: it has room for 32 bytes, and
# 48 arrive. `try` does not help, because this happens in another thread, in C++. An int64 message
# is also too long for a float32 buffer of as many elements.
#
# **Cure.** Send the length first.
#
# **Early.** If a rank died by SIGABRT, look at its stderr first, because gloo names both lengths
# there, in bytes.
#
# </details>


# %%
@cure(ranks=2)
def length_first(rank, world_size, device):
    if rank == 0:
        x = torch.arange(6, device=device)
        dist.send(torch.tensor([len(x)], device=device), dst=1)
        dist.send(x, dst=1)
    else:
        length = torch.tensor([-1], device=device)
        dist.recv(length, src=0)
        x = torch.full((length.item(),), -1, device=device)
        dist.recv(x, src=0)
    check(x, torch.arange(6), "recv")
    return {"x": x}


# %%
if __name__ == "__main__":
    run(length_first, folded=True)

# %% [markdown]
# ## Program 2: the mean of what was received
#
# **You see.** There is no error, but the mean is wrong.


# %%
@mistake("wrong numbers", ranks=2)
def mean_after_recv(rank, world_size, device):
    x = torch.arange(4.0, device=device) if rank == 0 else torch.full((6,), 9.0, device=device)
    if rank == 0:
        dist.send(x, dst=1)
    else:
        dist.recv(x, src=0)
    check(x.mean(), torch.tensor(1.5), "mean after recv")


# %%
if __name__ == "__main__":
    run(mean_after_recv, folded=True)

# %% [markdown]
# <details><summary>What is wrong?</summary>
#
# **Cause: the buffer is too long.** `recv` writes the four numbers that arrive, and does not say
# how many they were, so the two last elements keep their old value. `broadcast` on gloo does the
# same. A buffer made by `torch.empty` is worse: its old values are whatever was in that memory,
# often zeros, which look like data.
#
# **Cure.** Send the length first, or agree on one shape, as here, where it is a constant that every
# rank knows.
#
# **Early.** Fill receive buffers with nan while you debug, because a nan in a mean is hard to
# overlook.
#
# </details>


# %%
@cure(ranks=2)
def one_shape(rank, world_size, device):
    shape = (4,)
    x = (
        torch.arange(4.0, device=device)
        if rank == 0
        else torch.full(shape, torch.nan, device=device)
    )
    if rank == 0:
        dist.send(x, dst=1)
    else:
        dist.recv(x, src=0)
    check(x.mean(), torch.tensor(1.5), "mean after recv")
    return {"mean": x.mean()}


# %%
if __name__ == "__main__":
    run(one_shape, folded=True)

# %% [markdown]
# ## Program 3: one tensor for every batch
#
# **You see.** There is no error, but the receiver gets zeros. (`span` gives a block of code a name,
# which the picture shows.)


# %%
@mistake("wrong numbers", ranks=2)
def one_tensor_for_every_batch(rank, world_size, device):
    x = torch.tensor([1, 2, 3] if rank == 0 else [-1, -1, -1], device=device)
    if rank == 0:
        work = dist.isend(x, dst=1)
        with span("clear x"):
            x.zero_()  # make room for the next batch
        work.wait()
    else:
        with span("late"):
            time.sleep(0.3)
        dist.recv(x, src=0)
        check(x, torch.tensor([1, 2, 3]), "isend, recv")


# %%
if __name__ == "__main__":
    run(one_tensor_for_every_batch, folded=True)

# %% [markdown]
# <details><summary>What is wrong?</summary>
#
# **Cause: the tensor is changed before `wait()`.** `isend` does not copy the tensor, so the
# receiver gets the values of a later moment (`torch/distributed/distributed_c10d.py`: "Modifying
# ``tensor`` before the request completes causes undefined behavior"). If the receiver is quick, the
# result may be right.
#
# **Cure.** Wait before you write to the tensor, or send a copy.
#
# **Early.** Nothing in torch warns you, so keep `isend` and its `wait` close together, and let
# nothing write between them.
#
# </details>


# %%
@cure(ranks=2)
def changed_after_wait(rank, world_size, device):
    x = torch.tensor([1, 2, 3] if rank == 0 else [-1, -1, -1], device=device)
    if rank == 0:
        work = dist.isend(x, dst=1)
        work.wait()
        with span("clear x"):
            x.zero_()
    else:
        with span("late"):
            time.sleep(0.3)
        dist.recv(x, src=0)
        check(x, torch.tensor([1, 2, 3]), "isend, recv")
    return {"x": x}


# %%
if __name__ == "__main__":
    run(changed_after_wait, folded=True)

# %% [markdown]
# ## Program 4: a gradient in the background
#
# **You see.** There is no error, but rank 0 uses its own gradient, as if it trained alone. If no
# rank is late, the result may even be right.


# %%
@mistake("wrong numbers", ranks=2)
def gradient_in_background(rank, world_size, device):
    gradient = torch.tensor([10.0**rank], device=device)
    if rank == 1:
        time.sleep(0.5)  # is late
    dist.all_reduce(gradient, async_op=True)
    used = gradient.clone()  # the optimizer's step
    if rank == 0:
        check(used, torch.tensor([11.0]), "all_reduce(SUM, async_op=True)")


# %%
if __name__ == "__main__":
    run(gradient_in_background, folded=True)

# %% [markdown]
# <details><summary>What is wrong?</summary>
#
# **Cause: there is no `wait()`.** With `async_op=True` the call returns immediately, but the result
# is there only when `wait()` has returned.
#
# **Cure.** Call `wait()`, then read.
#
# **Early.** Assign the result of every call with `async_op=True` to a name, because you cannot wait
# for a `Work` that you did not keep.
#
# </details>


# %%
@cure(ranks=2)
def wait_then_use(rank, world_size, device):
    gradient = torch.tensor([10.0**rank], device=device)
    if rank == 1:
        time.sleep(0.5)
    work = dist.all_reduce(gradient, async_op=True)
    work.wait()
    used = gradient.clone()
    check(used, torch.tensor([11.0]), "all_reduce(SUM, async_op=True)")
    return {"used": used}


# %%
if __name__ == "__main__":
    run(wait_then_use, folded=True)

# %% [markdown]
# ## Program 5: the loss on every rank
#
# **You see.** There is no error. Rank 0 has the right sum, but ranks 1 and 2 have other numbers.


# %%
@mistake("wrong numbers", ranks=3)
def loss_on_every_rank(rank, world_size, device):
    loss = torch.tensor([10**rank], device=device)
    dist.reduce(loss, dst=0)
    check(loss, torch.tensor([111]), "reduce(SUM)")


# %%
if __name__ == "__main__":
    run(loss_on_every_rank, folded=True)

# %% [markdown]
# <details><summary>What is wrong?</summary>
#
# **Cause: only the root of `reduce` has the result.** gloo uses the tensors of the other ranks for
# partial sums, so even their own values may be lost: rank 2 still has its own 100, but rank 1 has
# 10 + 100 = 110.
#
# **Cure.** If all ranks need the sum, use `all_reduce`.
#
# **Early.** After `reduce`, only the rank `dst` may read that tensor.
#
# </details>


# %%
@cure(ranks=3)
def all_reduce_for_all(rank, world_size, device):
    loss = torch.tensor([10**rank], device=device)
    dist.all_reduce(loss)
    check(loss, torch.tensor([111]), "all_reduce(SUM)")
    return {"loss": loss}


# %%
if __name__ == "__main__":
    run(all_reduce_for_all, folded=True)

# %% [markdown]
# ## Program 6: the sum of a column
#
# **You see.** There is no error. The program should sum the first column, but the first row
# changes: `[1, 2]` becomes `[2, 4]`.


# %%
@mistake("wrong numbers", ranks=2)
def sum_a_column(rank, world_size, device):
    table = torch.tensor([[1, 2], [3, 4]], device=device)
    dist.all_reduce(table[:, 0])
    check(table, torch.tensor([[2, 2], [6, 4]]), "all_reduce(SUM) of a column")


# %%
if __name__ == "__main__":
    run(sum_a_column, folded=True)

# %% [markdown]
# <details><summary>What is wrong?</summary>
#
# **Cause: a column is a view with gaps.** In memory, the column is every second element of the
# table. gloo's `all_reduce` ignores the gaps and takes the first two elements, which are the first
# row. (`send` refuses such a view.)
#
# **Cure.** Make a contiguous copy, reduce it, and copy the result back into the table.
#
# **Early.** Check `tensor.is_contiguous()` before you pass a slice, a transpose or the result of
# `expand` to a collective.
#
# </details>


# %%
@cure(ranks=2)
def column_through_a_copy(rank, world_size, device):
    table = torch.tensor([[1, 2], [3, 4]], device=device)
    column = table[:, 0].contiguous()
    dist.all_reduce(column)
    table[:, 0] = column
    check(table, torch.tensor([[2, 2], [6, 4]]), "all_reduce(SUM) of a column")
    return {"table": table}


# %%
if __name__ == "__main__":
    run(column_through_a_copy, folded=True)

# %% [markdown]
# ## Program 7: the sum of a transposed gradient
#
# **You see.** There is no error, but every rank keeps its own gradient, as if nothing had been
# summed. With a gradient that is not transposed, the same line works.


# %%
@mistake("wrong numbers", ranks=2)
def sum_a_transposed_gradient(rank, world_size, device):
    gradient = 10**rank * torch.tensor([[1, 2], [3, 4]], device=device).t()
    dist.all_reduce(gradient.contiguous())
    check(gradient, torch.tensor([[11, 33], [22, 44]]), "all_reduce(SUM) of a transposed gradient")


# %%
if __name__ == "__main__":
    run(sum_a_transposed_gradient, folded=True)

# %% [markdown]
# <details><summary>What is wrong?</summary>
#
# **Cause: the sum is in a copy that nobody keeps.** `contiguous()` returns the tensor itself if it
# is contiguous, and a copy if it is not. So it depends on the layout whether the line sums the
# gradient or a copy of it, and a test with an ordinary tensor passes. [Megatron-LM had this
# line](https://github.com/NVIDIA/Megatron-LM/issues/5337).
#
# **Cure.** Keep the copy, reduce it, and copy the result back.
#
# **Early.** Pass a name, and not an expression, to a collective that writes into its argument.
#
# </details>


# %%
@cure(ranks=2)
def keep_the_copy(rank, world_size, device):
    gradient = 10**rank * torch.tensor([[1, 2], [3, 4]], device=device).t()
    copy = gradient.contiguous()
    dist.all_reduce(copy)
    gradient.copy_(copy)
    check(gradient, torch.tensor([[11, 33], [22, 44]]), "all_reduce(SUM) of a transposed gradient")
    return {"gradient": gradient}


# %%
if __name__ == "__main__":
    run(keep_the_copy, folded=True)

# %% [markdown]
# ## Fix it yourself
#
# In your folder of [exercises](../../README.md#exercises):
#
# ```sh
# collectives practice the_same_buffer
# collectives practice a_column
# ```
#
# Next lesson: [groups](../../notebooks/mistakes/groups.ipynb), in which a rank is in more than one
# group.

# %%
STEPS = [
    six_numbers,
    length_first,
    mean_after_recv,
    one_shape,
    one_tensor_for_every_batch,
    changed_after_wait,
    gradient_in_background,
    wait_then_use,
    loss_on_every_rank,
    all_reduce_for_all,
    sum_a_column,
    column_through_a_copy,
    sum_a_transposed_gradient,
    keep_the_copy,
]
