# %% [markdown]
"""
# order: ranks that call different collectives, hangs and wrong sums

Every rank of a group must call the same collectives in the same order.

In each of these seven programs one rank does not, often for a good reason: it alone writes the log,
or it has run out of batches. gloo matches calls by their position alone, so its call meets another
one than it should, and the result is a hang, a lost connection, or wrong numbers without an error.
At the end of this lesson you know where to look for such a call.

Find each mistake yourself first: read "You see" and the program, and say which line is wrong. Then
open the output, the answer, and the cure below it.

    python lessons/mistakes/order.py
    torchrun --nproc-per-node 4 lessons/mistakes/order.py
"""

# %%
from collectives import check, cure, mistake, run
import threading
import time
import torch
import torch.distributed as dist

# %% [markdown]
# ## Program 1: a mean loss for the log
#
# **You see.** The gradient is wrong on ranks 1 and 2, although its sum has nothing to do with the
# log. Rank 0 still waits when these two have ended, and loses its connection to them:
#
# ```text
# RuntimeError: [.../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:21659.
# This is typically caused by a remote worker crashing. Check the logs of the remote worker before
# reporting an error.
# ```


# %%
@mistake("wrong numbers", ranks=3)
def log_the_mean_loss(rank, world_size, device):
    loss, gradient = (
        torch.tensor([rank + 1.0], device=device),
        torch.tensor([10.0 * (rank + 1)], device=device),
    )
    if rank == 0:  # only rank 0 writes the log
        dist.all_reduce(loss)
    dist.all_reduce(gradient)
    check(gradient, torch.tensor([60.0]), "all_reduce(SUM)")


# %%
if __name__ == "__main__":
    run(log_the_mean_loss, folded=True)

# %% [markdown]
# <details><summary>What is wrong?</summary>
#
# **Cause: only rank 0 makes the call.** gloo matches the first call of rank 0 with the first call
# of ranks 1 and 2, and there they reduce their gradients. So the loss of 1 is added to 20 and 30,
# which makes 1 + 20 + 30 = 51. Then rank 0 reduces its gradient and waits, because no other rank
# makes a second call.
#
# **Cure.** All ranks make the call, and only rank 0 uses the result.
#
# **Early.** Search for collectives under an `if rank`, and look inside the functions that are
# called there, too, because checkpoints, logs and metrics often contain one. So does `model(x)` if
# the model is wrapped in DDP: its forward broadcasts the buffers.
# `TORCH_DISTRIBUTED_DEBUG=DETAIL` names the ranks that did not make the call:
#
# ```text
# RuntimeError: [Rank 0]: Ranks 1, 2 failed to pass monitoredBarrier in 1800000 ms
# ```
#
# </details>


# %%
@cure(ranks=3)
def every_rank_reduces(rank, world_size, device):
    loss, gradient = (
        torch.tensor([rank + 1.0], device=device),
        torch.tensor([10.0 * (rank + 1)], device=device),
    )
    dist.all_reduce(loss)
    log = f"mean loss {loss.item() / world_size}" if rank == 0 else None
    dist.all_reduce(gradient)
    check(gradient, torch.tensor([60.0]), "all_reduce(SUM)")
    check(log, "mean loss 2.0" if rank == 0 else None, "all_reduce(SUM), for the log")
    return {"gradient": gradient, "log": log}


# %%
if __name__ == "__main__":
    run(every_rank_reduces, folded=True)

# %% [markdown]
# ## Program 2: the last batch of an epoch
#
# **You see.** Everything is right until the end of the epoch. Then rank 2 ends normally, and the
# other two ranks fail:
#
# ```text
# RuntimeError: [.../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:21659.
# This is typically caused by a remote worker crashing. Check the logs of the remote worker before
# reporting an error.
# ```


# %%
@mistake("breaks off", ranks=3)
def end_of_an_epoch(rank, world_size, device):
    batches = [1.0, 2.0] if rank == 2 else [1.0, 2.0, 3.0]
    for batch in batches:
        gradient = torch.tensor([batch * 10**rank], device=device)
        dist.all_reduce(gradient)
        check(gradient, torch.tensor([111 * batch]), "all_reduce(SUM)")


# %%
if __name__ == "__main__":
    run(end_of_an_epoch, folded=True)

# %% [markdown]
# <details><summary>What is wrong?</summary>
#
# **Cause: one rank has a batch less.** Eight batches cannot be divided evenly among three ranks, so
# rank 2 ends its program after two of them, while ranks 0 and 1 wait for it in the third. It could
# be worse: if rank 2 called other collectives next, such as those of a validation, they would be
# matched with the gradients of ranks 0 and 1.
#
# **Cure.** Let the ranks agree on a number of batches: here, the smallest. `DistributedSampler`
# pads or drops samples for the same reason. With DDP, put the loop into `with Join([model]):` of
# `torch.distributed.algorithms.join`. Then a rank that has finished still takes part in the
# reductions, with zeros, but the sum is divided by the number of all ranks.
#
# **Early.** Compare `len(loader)` over the ranks before the first epoch.
#
# </details>


# %%
@cure(ranks=3)
def as_many_as_all_have(rank, world_size, device):
    batches = [1.0, 2.0] if rank == 2 else [1.0, 2.0, 3.0]
    fewest = torch.tensor(len(batches), device=device)
    dist.all_reduce(fewest, op=dist.ReduceOp.MIN)
    for batch in batches[: fewest.item()]:
        gradient = torch.tensor([batch * 10**rank], device=device)
        dist.all_reduce(gradient)
        check(gradient, torch.tensor([111 * batch]), "all_reduce(SUM)")
    return {"batches used": fewest}


# %%
if __name__ == "__main__":
    run(as_many_as_all_have, folded=True)

# %% [markdown]
# ## Program 3: a loss and a penalty
#
# **You see.** The numbers are wrong, and nothing else happens. No rank waits or raises an error,
# and torch notices nothing, not even under `TORCH_DISTRIBUTED_DEBUG=DETAIL`.


# %%
@mistake("wrong numbers", ranks=3)
def loss_and_penalty(rank, world_size, device):
    loss, penalty = torch.tensor([1.0], device=device), torch.tensor([100.0], device=device)

    def reduce_loss():
        dist.all_reduce(loss)

    def reduce_penalty():
        dist.all_reduce(penalty)

    hooks = (
        [reduce_penalty, reduce_loss] if rank == 1 else [reduce_loss, reduce_penalty]
    )  # as iterating over a set might give
    for hook in hooks:
        hook()
    check([loss, penalty], [torch.tensor([3.0]), torch.tensor([300.0])], "all_reduce(SUM)")


# %%
if __name__ == "__main__":
    run(loss_and_penalty, folded=True)

# %% [markdown]
# <details><summary>What is wrong?</summary>
#
# **Cause: equal calls in another order.** Rank 1 makes its two calls the other way round, so
# its penalty meets two losses, 1 + 100 + 1 = 102, and its loss meets two penalties, 100 + 1 +
# 100 = 201. Call, shape and dtype are equal on all ranks, so gloo has no way to notice.
#
# **Cure.** Take an order that every rank can work out by itself: here, `sorted` by name.
#
# **Early.** Let the ranks loop over lists and not over sets, because the order of a set may differ
# from process to process.
#
# </details>


# %%
@cure(ranks=3)
def sorted_hooks(rank, world_size, device):
    loss, penalty = torch.tensor([1.0], device=device), torch.tensor([100.0], device=device)

    def reduce_loss():
        dist.all_reduce(loss)

    def reduce_penalty():
        dist.all_reduce(penalty)

    hooks = [reduce_penalty, reduce_loss] if rank == 1 else [reduce_loss, reduce_penalty]
    for hook in sorted(hooks, key=lambda hook: hook.__name__):
        hook()
    check(hooks[0] is reduce_penalty, rank == 1, "the first hook is that of the penalty")
    check([loss, penalty], [torch.tensor([3.0]), torch.tensor([300.0])], "all_reduce(SUM)")
    return {"loss": loss, "penalty": penalty}


# %%
if __name__ == "__main__":
    run(sorted_hooks, folded=True)

# %% [markdown]
# ## Program 4: a sum, and a rate from rank 0
#
# **You see.** All ranks wait, but they do not all wait in the same line. After 30 minutes:
#
# ```text
# RuntimeError: [.../gloo/transport/tcp/unbound_buffer.cc:129] Timed out waiting 1800000ms for send
# operation to complete
# ```


# %%
@mistake("hangs", ranks=3)
def sum_and_rate(rank, world_size, device):
    total, rate = (
        torch.tensor([10.0**rank], device=device),
        torch.tensor([0.5 if rank == 0 else -1.0], device=device),
    )
    if rank == 0:
        dist.broadcast(rate, src=0)
        dist.all_reduce(total)
    else:
        dist.all_reduce(total)
        dist.broadcast(rate, src=0)
    check([total, rate], [torch.tensor([111.0]), torch.tensor([0.5])], "all_reduce(SUM), broadcast")


# %%
if __name__ == "__main__":
    run(sum_and_rate, folded=True)

# %% [markdown]
# <details><summary>What is wrong?</summary>
#
# **Cause: different calls in another order.** Each branch contains both calls, so the program looks
# complete. But rank 0 starts with the broadcast, while ranks 1 and 2 start with the sum.
#
# **Cure.** Let the branches prepare the tensors only, and make each call below them, in one line
# for all ranks.
#
# **Early.** `TORCH_DISTRIBUTED_DEBUG=DETAIL` names this mistake immediately. It costs time at every
# call, so switch it on while you search, and off when you train:
#
# ```text
# RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective:
# CollectiveFingerPrint(SequenceNumber=0, OpType=BROADCAST, ... but Rank 1 is running collective:
# CollectiveFingerPrint(SequenceNumber=0, OpType=ALLREDUCE, ...
# ```
#
# </details>


# %%
@cure(ranks=3)
def one_line_for_all_ranks(rank, world_size, device):
    total, rate = (
        torch.tensor([10.0**rank], device=device),
        torch.tensor([0.5 if rank == 0 else -1.0], device=device),
    )
    dist.broadcast(rate, src=0)
    dist.all_reduce(total)
    check([total, rate], [torch.tensor([111.0]), torch.tensor([0.5])], "all_reduce(SUM), broadcast")
    return {"total": total, "rate": rate}


# %%
if __name__ == "__main__":
    run(one_line_for_all_ranks, folded=True)

# %% [markdown]
# ## Program 5: a sum in two branches
#
# **You see.** The program worked until somebody changed one branch. Now all ranks wait. After 30
# minutes:
#
# ```text
# RuntimeError: [.../gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1800000ms for recv
# operation to complete
# ```


# %%
@mistake("hangs", ranks=3)
def two_branches(rank, world_size, device):
    x = torch.tensor([10**rank], device=device)
    if rank == 0:
        dist.all_reduce(x)
    else:
        everyone = [torch.zeros_like(x) for _ in range(world_size)]
        dist.all_gather(everyone, x)
        x = sum(everyone)
    check(x, torch.tensor([111]), "all_reduce(SUM)")


# %%
if __name__ == "__main__":
    run(two_branches, folded=True)

# %% [markdown]
# <details><summary>What is wrong?</summary>
#
# **Cause: different calls for the same result.** Adding up what `all_gather` has collected gives
# the same sum as `all_reduce`. But the two calls exchange different messages, so each rank waits
# for one that nobody sends.
#
# **Cure.** Make the same call on all ranks.
#
# **Early.** Do not write the same call into two branches, because sooner or later somebody changes
# one of them.
#
# </details>


# %%
@cure(ranks=3)
def the_same_call(rank, world_size, device):
    x = torch.tensor([10**rank], device=device)
    dist.all_reduce(x)
    check(x, torch.tensor([111]), "all_reduce(SUM)")
    return {"x": x}


# %%
if __name__ == "__main__":
    run(the_same_call, folded=True)

# %% [markdown]
# ## Program 6: the mean of every metric
#
# **You see.** The loss is wrong on rank 1. Rank 0 still waits when rank 1 has ended, and loses its
# connection:
#
# ```text
# RuntimeError: [.../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:21659.
# This is typically caused by a remote worker crashing. Check the logs of the remote worker before
# reporting an error.
# ```


# %%
@mistake("wrong numbers", ranks=2)
def mean_of_every_metric(rank, world_size, device):
    metrics = {"boxes": 8.0, "loss": 1.0} if rank == 0 else {"loss": 3.0}  # rank 1 saw no boxes
    sums = {}
    for name, value in metrics.items():
        sums[name] = torch.tensor([value], device=device)
        dist.all_reduce(sums[name])
    check(sums["loss"], torch.tensor([4.0]), "all_reduce(SUM)")


# %%
if __name__ == "__main__":
    run(mean_of_every_metric, folded=True)

# %% [markdown]
# <details><summary>What is wrong?</summary>
#
# **Cause: the dictionaries have other keys.** A collective knows no names. The first call of rank 0
# is about its boxes and that of rank 1 about its loss, so rank 1 gets 8 + 3 = 11. Rank 0 then makes
# a second call, which rank 1 never makes. The same keys in another order mix the numbers, too.
#
# **Cure.** Let the ranks agree on the names first, and add up a zero where a rank has no value.
#
# **Early.** Look at loops over dictionaries that contain a collective, and compare the keys of all
# ranks once: `all_gather_object(everyone, sorted(metrics))`.
#
# </details>


# %%
@cure(ranks=2)
def names_of_all_ranks(rank, world_size, device):
    metrics = {"boxes": 8.0, "loss": 1.0} if rank == 0 else {"loss": 3.0}
    everyone = [None] * world_size
    dist.all_gather_object(everyone, list(metrics))
    sums = {}
    for name in sorted(set().union(*everyone)):
        sums[name] = torch.tensor([metrics.get(name, 0.0)], device=device)
        dist.all_reduce(sums[name])
    check(
        [sums["boxes"], sums["loss"]], [torch.tensor([8.0]), torch.tensor([4.0])], "all_reduce(SUM)"
    )
    return sums


# %%
if __name__ == "__main__":
    run(names_of_all_ranks, folded=True)

# %% [markdown]
# ## Program 7: a count in the background
#
# **You see.** Both numbers are wrong, on both ranks, in some runs. Nothing waits, and no rank raises
# an error.


# %%
@mistake("wrong numbers", ranks=2)
def count_in_the_background(rank, world_size, device):
    loss, count = torch.tensor([1.0], device=device), torch.tensor([100.0], device=device)

    def report():
        time.sleep(0.3 if rank == 0 else 0.0)  # a thread runs when the system lets it
        dist.all_reduce(count)

    thread = threading.Thread(target=report)
    thread.start()
    time.sleep(0.3 if rank == 1 else 0.0)  # the step takes longer here
    dist.all_reduce(loss)
    thread.join()
    check([loss, count], [torch.tensor([2.0]), torch.tensor([200.0])], "all_reduce(SUM)")


# %%
if __name__ == "__main__":
    run(count_in_the_background, folded=True)

# %% [markdown]
# <details><summary>What is wrong?</summary>
#
# **Cause: a second thread makes calls, too.** Which of the two threads comes first is decided anew
# on every rank. Rank 0 reduced its loss first and rank 1 its count, so 1 and 100 were added up, and
# then 100 and 1. Progress bars, checkpoints and loggers that work in the background do this.
#
# **Cure.** Let one thread make all calls. If the other one must make calls, give it a group of its
# own, made by all ranks at the start, because calls are matched within a group.
#
# **Early.** Search for threads whose functions contain a collective, also those of libraries.
#
# </details>


# %%
@cure(ranks=2)
def calls_from_one_thread(rank, world_size, device):
    loss, count = torch.tensor([1.0], device=device), torch.zeros(1, device=device)

    def report():
        time.sleep(0.1)
        count.fill_(100.0)  # prepares what is sent, and makes no call

    thread = threading.Thread(target=report)
    thread.start()
    dist.all_reduce(loss)
    thread.join()
    dist.all_reduce(count)
    check([loss, count], [torch.tensor([2.0]), torch.tensor([200.0])], "all_reduce(SUM)")
    return {"loss": loss, "count": count}


# %%
if __name__ == "__main__":
    run(calls_from_one_thread, folded=True)

# %% [markdown]
# ## Fix it yourself
#
# In your folder of [exercises](../../README.md#exercises):
#
# ```sh
# collectives practice repair_the_order
# collectives practice only_rank_0_logs
# collectives practice early_stop
# collectives practice a_dictionary
# ```
#
# Next lesson: [arguments](../../notebooks/mistakes/arguments.ipynb), in which all ranks make the
# same call, but pass it different arguments.

# %%
STEPS = [
    log_the_mean_loss,
    every_rank_reduces,
    end_of_an_epoch,
    as_many_as_all_have,
    loss_and_penalty,
    sorted_hooks,
    sum_and_rate,
    one_line_for_all_ranks,
    two_branches,
    the_same_call,
    mean_of_every_metric,
    names_of_all_ranks,
    count_in_the_background,
    calls_from_one_thread,
]
