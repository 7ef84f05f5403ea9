# %% [markdown]
"""
# order

Every rank of a group must call the same collectives in the same order. Five programs in which one rank does not.

You will see that gloo matches calls by their position alone: a rank that is one call ahead may hang, may break off, or may hand
out wrong numbers with a straight face. Each mistake runs in ranks of its own for a second or two, and is then cured.

    python lessons/mistakes/order.py
    torchrun --nproc-per-node 4 lessons/mistakes/order.py

To run it, clone the repository and type `make tour`, or `pip install -e .` where you already have torch.
"""

# %%
from collectives import check
from collectives.lesson import cure, mistake, run
import torch
import torch.distributed as dist

# %% [markdown]
# ## Only rank 0 calls it
#
# **Symptom.** Rank 0 wants a mean loss for its log. The *next* collective, which has nothing to do with it, comes out wrong.


# %%
@mistake("wrong numbers", ranks=3)
def only_rank_0_reduces(rank, world_size, device):
    loss, gradient = torch.tensor([float(rank)], device=device), torch.tensor([10.0 * (rank + 1)], device=device)
    if rank == 0:  # only rank 0 writes the log
        dist.all_reduce(loss)
    dist.all_reduce(gradient)
    check(gradient, torch.tensor([60.0]), "all_reduce(SUM)")


# %%
if __name__ == "__main__":
    run(only_rank_0_reduces)

# %% [markdown]
# **Cause.** The first call of rank 0 meets the first call of the others: its loss 0 is added to their gradients 20 and 30. Its own
# gradient then meets nobody. Had the two shapes been unlike, the others would not have finished either.
#
# **Cure.** All ranks take part; only one uses the result.
#
# **Early.** Search for collectives below an `if rank`. Also for those within functions that are called there: saving, logging,
# `len` of a distributed thing.


# %%
@cure(ranks=3)
def every_rank_reduces(rank, world_size, device):
    loss, gradient = torch.tensor([float(rank)], device=device), torch.tensor([10.0 * (rank + 1)], device=device)
    dist.all_reduce(loss)
    log = f"mean loss {loss.item() / world_size}" if rank == 0 else None
    dist.all_reduce(gradient)
    check(gradient, torch.tensor([60.0]), "all_reduce(SUM)")
    check(log, "mean loss 1.0" if rank == 0 else None, "all_reduce(SUM), for the log")
    return {"gradient": gradient, "log": log}


# %%
if __name__ == "__main__":
    run(every_rank_reduces)

# %% [markdown]
# ## One batch less
#
# **Symptom.** All goes well until the very end of the epoch. Rank 2 finishes in peace, the others do not.


# %%
@mistake("breaks off", ranks=3)
def one_batch_less(rank, world_size, device):
    batches = [1.0, 2.0] if rank == 2 else [1.0, 2.0, 3.0]
    for batch in batches:
        gradient = torch.tensor([batch], device=device)
        dist.all_reduce(gradient)
        check(gradient, torch.tensor([3 * batch]), "all_reduce(SUM)")


# %%
if __name__ == "__main__":
    run(one_batch_less)

# %% [markdown]
# **Cause.** Eight batches do not go into three ranks. Here rank 2 ends its program, and the others notice that the line is dead.
# Had it gone on to a validation with collectives of its own, they would have met the others' gradients; and NCCL just waits.
#
# **Cure.** Agree on the number of batches, here on the smallest. `DistributedSampler` pads or drops for the same reason, and for
# DDP there is `Join`.
#
# **Early.** Compare `len(loader)` over the ranks before the first epoch, not in the last one.


# %%
@cure(ranks=3)
def as_many_as_all_have(rank, world_size, device):
    batches = [1.0, 2.0] if rank == 2 else [1.0, 2.0, 3.0]
    fewest = torch.tensor(len(batches), device=device)
    dist.all_reduce(fewest, op=dist.ReduceOp.MIN)
    for batch in batches[: fewest.item()]:
        gradient = torch.tensor([batch], device=device)
        dist.all_reduce(gradient)
        check(gradient, torch.tensor([3 * batch]), "all_reduce(SUM)")
    return {"batches used": fewest}


# %%
if __name__ == "__main__":
    run(as_many_as_all_have)

# %% [markdown]
# ## Equal calls in another order
#
# **Symptom.** No error, no wait, wrong numbers. Nothing in torch notices.


# %%
@mistake("wrong numbers", ranks=3)
def equal_calls_in_another_order(rank, world_size, device):
    loss, penalty = torch.tensor([1.0], device=device), torch.tensor([100.0], device=device)

    def reduce_loss():
        dist.all_reduce(loss)

    def reduce_penalty():
        dist.all_reduce(penalty)

    hooks = [reduce_penalty, reduce_loss] if rank == 1 else [reduce_loss, reduce_penalty]  # as out of a set
    for hook in hooks:
        hook()
    check([loss, penalty], [torch.tensor([3.0]), torch.tensor([300.0])], "all_reduce(SUM)")


# %%
if __name__ == "__main__":
    run(equal_calls_in_another_order)

# %% [markdown]
# **Cause.** Two losses and a penalty were added, then two penalties and a loss: same call, same shape, same dtype, so they match.
#
# **Cure.** An order that every rank can work out by itself: `sorted`.
#
# **Early.** Whatever the ranks loop over must be a list with one order. A set has another order in every process.


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
    check([loss, penalty], [torch.tensor([3.0]), torch.tensor([300.0])], "all_reduce(SUM)")
    return {"loss": loss, "penalty": penalty}


# %%
if __name__ == "__main__":
    run(sorted_hooks)

# %% [markdown]
# ## Unlike calls in another order
#
# **Symptom.** Everybody waits, in two different lines. That is good luck: compare the case above.


# %%
@mistake("hangs", ranks=3)
def unlike_calls_in_another_order(rank, world_size, device):
    total, rate = torch.tensor([1.0], device=device), torch.tensor([0.5 if rank == 0 else -1.0], device=device)
    if rank == 0:
        dist.broadcast(rate, src=0)
        dist.all_reduce(total)
    else:
        dist.all_reduce(total)
        dist.broadcast(rate, src=0)
    check([total, rate], [torch.tensor([3.0]), torch.tensor([0.5])], "all_reduce(SUM), broadcast")


# %%
if __name__ == "__main__":
    run(unlike_calls_in_another_order)

# %% [markdown]
# **Cause.** Rank 0 offers a broadcast, the others want a sum. Two branches that call the same things in another order.
#
# **Cure.** Let the branches prepare the tensors, and let one line for all ranks make the call.
#
# **Early.** `TORCH_DISTRIBUTED_DEBUG=DETAIL` names this one at once. It costs time at every call, so it is for looking, not for
# training.


# %%
@cure(ranks=3)
def one_line_for_all_ranks(rank, world_size, device):
    total, rate = torch.tensor([1.0], device=device), torch.tensor([0.5 if rank == 0 else -1.0], device=device)
    dist.broadcast(rate, src=0)
    dist.all_reduce(total)
    check([total, rate], [torch.tensor([3.0]), torch.tensor([0.5])], "all_reduce(SUM), broadcast")
    return {"total": total, "rate": rate}


# %%
if __name__ == "__main__":
    run(one_line_for_all_ranks)

# %% [markdown]
# ## Another call
#
# **Symptom.** Rank 0 was edited, the others were not. All wait.


# %%
@mistake("hangs", ranks=3)
def another_call(rank, world_size, device):
    x = torch.tensor([rank + 1], device=device)
    if rank == 0:
        dist.all_reduce(x)
    else:
        everyone = [torch.zeros_like(x) for _ in range(world_size)]
        dist.all_gather(everyone, x)
        x = sum(everyone)
    check(x, torch.tensor([6]), "all_reduce(SUM)")


# %%
if __name__ == "__main__":
    run(another_call)

# %% [markdown]
# **Cause.** The sum of what was gathered is the sum, in mathematics. On the wire these are other messages.
#
# **Cure.** One call on all ranks.
#
# **Early.** A collective is a line that all ranks reach together. If it has to stand twice, the two are bound to drift apart.


# %%
@cure(ranks=3)
def the_same_call(rank, world_size, device):
    x = torch.tensor([rank + 1], device=device)
    dist.all_reduce(x)
    check(x, torch.tensor([6]), "all_reduce(SUM)")
    return {"x": x}


# %%
if __name__ == "__main__":
    run(the_same_call)

# %%
STEPS = [
    only_rank_0_reduces,
    every_rank_reduces,
    one_batch_less,
    as_many_as_all_have,
    equal_calls_in_another_order,
    sorted_hooks,
    unlike_calls_in_another_order,
    one_line_for_all_ranks,
    another_call,
    the_same_call,
]
