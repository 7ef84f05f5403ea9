# %% [markdown]
"""
# buffers

A collective writes into memory that you gave it, at a time that it chooses. These six programs look
there too early or in the wrong place, or allocate the wrong size.

You will see values that are old, or torn, or belong to no rank, and a process that dies because a
message is too long. Each mistake runs in ranks of its own for a second or two. Then its cure runs.

    python lessons/mistakes/buffers.py
    torchrun --nproc-per-node 4 lessons/mistakes/buffers.py
"""

# %%
from collectives import check
from collectives.lesson import cure, mistake, run
import time
import torch
import torch.distributed as dist

# %% [markdown]
# ## A buffer too short
#
# **Symptom.** The receiver dies by SIGABRT (exit status -6), without an exception or a traceback.
# The sender notices nothing. On the receiver's stderr stands:
#
# ```text
# terminate called after throwing an instance of 'gloo::EnforceNotMet'
#   what():  [enforce fail at .../gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 48 vs 32. Received data size
#   doesn't match expected size. Is there a distributed collective mismatch in your code?
# ```


# %%
@mistake("dies", ranks=2)
def buffer_too_short(rank, world_size, device):
    if rank == 0:
        dist.send(torch.arange(6, device=device), dst=1)
    else:
        x = torch.full((4,), -1, device=device)
        dist.recv(x, src=0)
        check(x, torch.arange(6), "recv")


# %%
if __name__ == "__main__":
    run(buffer_too_short)

# %% [markdown]
# **Cause.** gloo sends the length along with the message. `recv` has no way to return it, so gloo
# ends a process whose buffer is too short: here 48 bytes come and there is room for 32. `try` does
# not help, because this happens in another thread, in C++. An int64 message is also too long for a
# float32 buffer of as many elements.
#
# **Cure.** Send the length first.
#
# **Early.** If a rank died by SIGABRT, look at its stderr first: gloo names both lengths, in bytes.


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
    run(length_first)

# %% [markdown]
# ## A buffer too long
#
# **Symptom.** There is no error. The head of the buffer is right, and the tail keeps its old
# values.


# %%
@mistake("wrong numbers", ranks=2)
def buffer_too_long(rank, world_size, device):
    x = torch.arange(4.0, device=device) if rank == 0 else torch.full((6,), 9.0, device=device)
    if rank == 0:
        dist.send(x, dst=1)
    else:
        dist.recv(x, src=0)
    check(x.mean(), torch.tensor(1.5), "mean after recv")


# %%
if __name__ == "__main__":
    run(buffer_too_long)

# %% [markdown]
# **Cause.** `recv` writes what arrives and does not say how much that was. `broadcast` on gloo does
# the same. In a buffer made by `torch.empty`, the tail is whatever was in that memory: often zeros,
# which look like data.
#
# **Cure.** Send the length first, or agree on one shape. Here the shape is a constant that every
# rank knows.
#
# **Early.** Fill receive buffers with nan while you debug. A nan in a mean is hard to overlook.


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
    run(one_shape)

# %% [markdown]
# ## Changed before wait
#
# **Symptom.** There is no error. The receiver gets the values that the tensor had *after* the call
# of `isend`.


# %%
@mistake("wrong numbers", ranks=2)
def changed_before_wait(rank, world_size, device):
    x = torch.tensor([1, 2, 3] if rank == 0 else [-1, -1, -1], device=device)
    if rank == 0:
        work = dist.isend(x, dst=1)
        x.zero_()  # make room for the next batch
        work.wait()
    else:
        time.sleep(0.3)  # the receiver comes late
        dist.recv(x, src=0)
        check(x, torch.tensor([1, 2, 3]), "isend, recv")


# %%
if __name__ == "__main__":
    run(changed_before_wait)

# %% [markdown]
# **Cause.** `isend` does not copy the tensor. Leave the tensor alone until `wait()` returns. If the
# receiver is quick, all seems well.
#
# **Cure.** Wait before you write to the tensor, or send a copy.
#
# **Early.** Nothing in torch warns you. Keep `isend` and its `wait` close together, and let nothing
# write between them.


# %%
@cure(ranks=2)
def changed_after_wait(rank, world_size, device):
    x = torch.tensor([1, 2, 3] if rank == 0 else [-1, -1, -1], device=device)
    if rank == 0:
        dist.isend(x, dst=1).wait()
        x.zero_()
    else:
        time.sleep(0.3)
        dist.recv(x, src=0)
        check(x, torch.tensor([1, 2, 3]), "isend, recv")
    return {"x": x}


# %%
if __name__ == "__main__":
    run(changed_after_wait)

# %% [markdown]
# ## A forgotten wait
#
# **Symptom.** There is no error. Rank 0 uses its own gradient, as if it trained alone. If no rank
# is late, the result may even be right.


# %%
@mistake("wrong numbers", ranks=2)
def forgotten_wait(rank, world_size, device):
    gradient = torch.tensor([rank + 1.0], device=device)
    if rank == 1:
        time.sleep(0.5)  # is late
    dist.all_reduce(gradient, async_op=True)
    used = gradient.clone()  # the optimizer's step
    if rank == 0:
        check(used, torch.tensor([3.0]), "all_reduce(SUM, async_op=True)")


# %%
if __name__ == "__main__":
    run(forgotten_wait)

# %% [markdown]
# **Cause.** With `async_op=True` the call returns immediately. The result is not there before
# `wait()` returns.
#
# **Cure.** Call `wait()`, then read.
#
# **Early.** Assign the result of every call with `async_op=True` to a name. You cannot wait for a
# `Work` that you did not keep.


# %%
@cure(ranks=2)
def wait_then_use(rank, world_size, device):
    gradient = torch.tensor([rank + 1.0], device=device)
    if rank == 1:
        time.sleep(0.5)
    work = dist.all_reduce(gradient, async_op=True)
    work.wait()
    used = gradient.clone()
    check(used, torch.tensor([3.0]), "all_reduce(SUM, async_op=True)")
    return {"used": used}


# %%
if __name__ == "__main__":
    run(wait_then_use)

# %% [markdown]
# ## Reading the result of reduce off the root
#
# **Symptom.** There is no error. The root has the right sum. The others have numbers that are
# neither their own nor the sum.


# %%
@mistake("wrong numbers", ranks=3)
def reduce_read_off_the_root(rank, world_size, device):
    loss = torch.tensor([rank + 1], device=device)
    dist.reduce(loss, dst=0)
    check(loss, torch.tensor([6]), "reduce(SUM)")


# %%
if __name__ == "__main__":
    run(reduce_read_off_the_root)

# %% [markdown]
# **Cause.** Only `dst` gets the sum. gloo uses the tensors of the others as scratch paper, so their
# own values are lost, too. What they hold are partial sums: rank 2 has its own 3, rank 1 has 2 + 3
# = 5.
#
# **Cure.** If all ranks need the sum, use `all_reduce`.
#
# **Early.** After `reduce`, only the rank `dst` may read that tensor.


# %%
@cure(ranks=3)
def all_reduce_for_all(rank, world_size, device):
    loss = torch.tensor([rank + 1], device=device)
    dist.all_reduce(loss)
    check(loss, torch.tensor([6]), "all_reduce(SUM)")
    return {"loss": loss}


# %%
if __name__ == "__main__":
    run(all_reduce_for_all)

# %% [markdown]
# ## A view with gaps
#
# **Symptom.** There is no error. The program sums the first column, and the first row changes: `[1,
# 2]` becomes `[2, 4]`.


# %%
@mistake("wrong numbers", ranks=2)
def column_in_place(rank, world_size, device):
    table = torch.tensor([[1, 2], [3, 4]], device=device)
    dist.all_reduce(table[:, 0])
    check(table, torch.tensor([[2, 2], [6, 4]]), "all_reduce(SUM) of a column")


# %%
if __name__ == "__main__":
    run(column_in_place)

# %% [markdown]
# **Cause.** In memory, the column is every second element of the table. gloo's `all_reduce`
# silently takes the first two elements instead, which are the first row. (`send` refuses such a
# view, as it should.)
#
# **Cure.** Make a contiguous copy, reduce it, and copy the result back into the table.
#
# **Early.** Check `tensor.is_contiguous()` before you pass a slice, a transpose or the result of
# `expand` to a collective.


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
    run(column_through_a_copy)

# %%
STEPS = [
    buffer_too_short,
    length_first,
    buffer_too_long,
    one_shape,
    changed_before_wait,
    changed_after_wait,
    forgotten_wait,
    wait_then_use,
    reduce_read_off_the_root,
    all_reduce_for_all,
    column_in_place,
    column_through_a_copy,
]
