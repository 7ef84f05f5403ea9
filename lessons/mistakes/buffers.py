# %% [markdown]
"""
# buffers

A collective writes into memory that you gave it, at a time that it chooses. Six programs that look there too early, in the wrong
place, or made the wrong room.

You will see values that are old, torn or nobody's, and a process that dies of one element too many. Each mistake runs in ranks of
its own for a second or two, and is then cured.

    python lessons/mistakes/buffers.py
    torchrun --nproc-per-node 4 lessons/mistakes/buffers.py

To run it, clone the repository and type `make tour`, or `pip install -e .` where you already have torch.
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
# **Symptom.** The receiver is gone: no exception, no traceback. The sender is content.


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
# **Cause.** The message brings its length, and gloo ends a process that has no room for it. `try` does not help: it happens in
# another thread, in C++. An int64 message for a float32 buffer of the same length is too long as well.
#
# **Cure.** Send the length first.
#
# **Early.** A rank that died of SIGABRT (exit status -6) died of something like this. Look at its stderr: gloo names both lengths.


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
# **Symptom.** No error. The head of the buffer is right, the tail is what it was before.


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
# **Cause.** `recv` fills what comes, and does not tell how much that was. `broadcast` on gloo does the same. With `torch.empty` the
# tail is whatever lay there: often zeros, which look like data.
#
# **Cure.** Send the length first, or agree on one shape. Here: what every rank knows.
#
# **Early.** Fill receive buffers with nan while you debug. A nan in a mean is hard to overlook.


# %%
@cure(ranks=2)
def one_shape(rank, world_size, device):
    shape = (4,)
    x = torch.arange(4.0, device=device) if rank == 0 else torch.full(shape, torch.nan, device=device)
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
# **Symptom.** The receiver gets what the tensor became *after* it was sent.


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
# **Cause.** `isend` takes no copy: until `wait()` returns, the tensor belongs to it. If the receiver is quick, all seems well.
#
# **Cure.** Wait before you write, or send a copy.
#
# **Early.** Nothing warns you. Keep the `isend` and its `wait` on one screen, and let nothing write between them.


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
# **Symptom.** Rank 0 steps with its own gradient, as if it were alone. When nobody is late, it may even be right.


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
# **Cause.** `async_op=True` returns at once. The result is there after `wait()`, and not before.
#
# **Cure.** `wait()`, then read.
#
# **Early.** Every `async_op=True` needs a name on its left side. A `Work` that is not kept cannot be waited for.


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
# **Symptom.** The root is right. The others hold numbers that are neither their own nor the sum.


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
# **Cause.** Only `dst` gets the sum. gloo uses the tensors of the others as scratch paper, so their own values are gone, too.
#
# **Cure.** `all_reduce`, if all need it.
#
# **Early.** After `reduce`, a rank other than `dst` should not touch that tensor again.


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
# **Symptom.** The sum of a column lands in the first row.


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
# **Cause.** A column is every second element. gloo's `all_reduce` takes the first two elements in memory instead, and says nothing.
# (`send` refuses such a view, as it should.)
#
# **Cure.** Make a contiguous copy, reduce that, and copy it back. The copy alone changes nothing in the table.
#
# **Early.** `tensor.is_contiguous()` before you hand a slice, a transpose or an `expand` to a collective.


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
