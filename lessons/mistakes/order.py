# %% [markdown]
"""
# order

Every rank of a group must call the same collectives in the same order. In each of these five
programs one rank does not.

You will see that gloo matches calls by their position alone. A rank that is one call ahead may
hang, may lose its connection, or may hand out wrong numbers with a straight face. Each mistake runs in ranks
of its own for a second or two. Then its cure runs.

    python lessons/mistakes/order.py
    torchrun --nproc-per-node 4 lessons/mistakes/order.py
"""

# %%
from collectives import check
from collectives.lesson import cure, mistake, run
import torch
import torch.distributed as dist

# %% [markdown]
# ## Only rank 0 calls it
#
# **Symptom.** Rank 0 wants a mean loss for its log. The *next* collective has nothing to do with
# the loss, and its result is wrong. Rank 0 still waits when the others have finished, and loses
# them:
#
# ```text
# RuntimeError: [.../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:21659.
# This is typically caused by a remote worker crashing. Check the logs of the remote worker before
# reporting an error.
# ```


# %%
@mistake("wrong numbers", ranks=3)
def only_rank_0_reduces(rank, world_size, device):
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
    run(only_rank_0_reduces)

# %% [markdown]
# **Cause.** The first call of rank 0 meets the first call of the others. Its loss of 1 is added to
# their gradients 20 and 30: that is the 51. The gradient of rank 0 then meets nothing. If the two
# shapes differed, the others would not finish either.
#
# **Cure.** All ranks take part, and one of them uses the result.
#
# **Early.** Search for collectives under an `if rank`. Look inside the functions called there, too:
# checkpointing, logging, metrics. `TORCH_DISTRIBUTED_DEBUG=DETAIL` names the ranks that did not
# make the call:
#
# ```text
# RuntimeError: [Rank 0]: Ranks 1, 2 failed to pass monitoredBarrier in 1800000 ms
# ```


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
    run(every_rank_reduces)

# %% [markdown]
# ## One batch less
#
# **Symptom.** All goes well until the very end of the epoch. Rank 2 ends normally. The others fail:
#
# ```text
# RuntimeError: [.../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:21659.
# This is typically caused by a remote worker crashing. Check the logs of the remote worker before
# reporting an error.
# ```


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
# **Cause.** Eight batches cannot be divided evenly among three ranks. Here rank 2 ends its program,
# and the others lose their connection to it. If rank 2 went on to a validation with collectives of
# its own, these would meet the gradients of the others. NCCL does not notice that the rank has
# gone, and waits (documented).
#
# **Cure.** Agree on a number of batches: here, the smallest. `DistributedSampler` pads or drops
# samples for the same reason. With DDP, put the loop into `with Join([model]):` of
# `torch.distributed.algorithms.join`. A rank that has finished then takes part in the reductions of
# the others, with zeros. The sum is still divided by the number of all ranks.
#
# **Early.** Compare `len(loader)` over the ranks before the first epoch.


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
# **Symptom.** The numbers are wrong. There is no error and no wait, and nothing in torch notices,
# not even under `TORCH_DISTRIBUTED_DEBUG=DETAIL`.


# %%
@mistake("wrong numbers", ranks=3)
def equal_calls_in_another_order(rank, world_size, device):
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
    run(equal_calls_in_another_order)

# %% [markdown]
# **Cause.** Rank 1 calls the two in the other order. The first call adds two losses and a penalty:
# 1 + 100 + 1 = 102. The second adds two penalties and a loss: 100 + 1 + 100 = 201. Call, shape and
# dtype are equal, so the calls match.
#
# **Cure.** Take an order that every rank can work out by itself: `sorted`.
#
# **Early.** Let the ranks loop over lists. The order of a set may differ from process to process.


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
# **Symptom.** All ranks wait, in two different lines. That is good luck: compare the mistake above.
# After 30 minutes:
#
# ```text
# RuntimeError: [.../gloo/transport/tcp/unbound_buffer.cc:129] Timed out waiting 1800000ms for send
# operation to complete
# ```


# %%
@mistake("hangs", ranks=3)
def unlike_calls_in_another_order(rank, world_size, device):
    total, rate = (
        torch.tensor([1.0], device=device),
        torch.tensor([0.5 if rank == 0 else -1.0], device=device),
    )
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
# **Cause.** Rank 0 starts a broadcast while the others start a sum. The two branches make the same
# calls in different orders.
#
# **Cure.** Let the branches prepare the tensors. Then one line makes the call for all ranks.
#
# **Early.** `TORCH_DISTRIBUTED_DEBUG=DETAIL` names this mistake immediately. It costs time at every
# call, so use it to search, not to train:
#
# ```text
# RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective:
# CollectiveFingerPrint(SequenceNumber=0, OpType=BROADCAST, ... but Rank 1 is running collective:
# CollectiveFingerPrint(SequenceNumber=0, OpType=ALLREDUCE, ...
# ```


# %%
@cure(ranks=3)
def one_line_for_all_ranks(rank, world_size, device):
    total, rate = (
        torch.tensor([1.0], device=device),
        torch.tensor([0.5 if rank == 0 else -1.0], device=device),
    )
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
# **Symptom.** Somebody changed the branch of rank 0 and forgot the other branch. All ranks wait.
# After 30 minutes:
#
# ```text
# RuntimeError: [.../gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1800000ms for recv
# operation to complete
# ```


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
# **Cause.** In mathematics, adding what was gathered gives the same sum. On the wire, the two calls
# exchange different messages.
#
# **Cure.** Make the same call on all ranks.
#
# **Early.** Write each collective once, in a line that all ranks reach. If it stands in two
# branches, sooner or later they differ. DETAIL reports this mistake as `Detected mismatch between
# collectives on ranks`.


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
