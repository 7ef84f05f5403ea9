# %% [markdown]
"""
# hearsay

**Claims that you have read, tested.** These are sentences that tutorials repeat, and a run for each
of them. Some were true once. Some never were.

You will see a verdict under every claim, and what the run printed. If a verdict is wrong, the run
fails. Each run has ranks of its own, on gloo and the CPU: four of them, or two where that is
enough. The verdicts hold for torch 2.13, unless they name another version. What is marked
"documented" was not run here.

    python lessons/hearsay.py
    torchrun --nproc-per-node 4 lessons/hearsay.py
"""

# %%
from collectives import check
from collectives.lesson import claim, run
import time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

# %% [markdown]
# ## Backends: gloo lacks reduce_scatter and all_to_all
#
# **Claim.** "gloo has no `reduce_scatter` and no `all_to_all`: for these you need NCCL or MPI."


# %%
@claim(ranks=4)
def gloo_has_both(rank, world_size, device):
    ones = list(torch.ones(4, device=device).split(1))
    total = torch.empty(1, device=device)
    dist.reduce_scatter(total, ones)
    check(total, torch.tensor([4.0]), "reduce_scatter(SUM)")

    mine = list(torch.full((4,), float(rank), device=device).split(1))
    theirs = list(torch.empty(4, device=device).split(1))
    dist.all_to_all(theirs, mine)
    check(torch.cat(theirs), torch.arange(4.0), "all_to_all")
    return {"reduce_scatter": total, "all_to_all": torch.cat(theirs)}


# %%
if __name__ == "__main__":
    run(gloo_has_both)

# %% [markdown]
# **Verdict.** False today, and true in part before. Every rank prints `[4.0] [0.0, 1.0, 2.0, 3.0]`.
# The forms that take one tensor came first, those that take lists later. This is what we measured
# on each version of torch:
#
# | call | 2.6 | 2.9 | 2.13 | 2.15 |
# |---|---|---|---|---|
# | `reduce_scatter` | refuses | works | works | works |
# | `reduce_scatter_tensor` | works | works | works | works |
# | `all_to_all` | refuses | refuses | works | works |
# | `all_to_all_single` | works | works | works | works |
# | `all_reduce`, `AVG` | refuses | works | works | works |

# %% [markdown]
# ## Backends: only NCCL can average
#
# **Claim.** "`ReduceOp.AVG` works on NCCL only. On gloo, sum and divide."


# %%
def error_of(call):
    """What a call that is refused says, in its first line."""
    try:
        call()
    except (TypeError, ValueError, RuntimeError) as error:
        return str(error).splitlines()[0]
    return "no error"


@claim(ranks=4)
def gloo_averages(rank, world_size, device):
    x = torch.tensor([10.0 * rank], device=device)
    dist.all_reduce(x, op=dist.ReduceOp.AVG)
    check(x, torch.tensor([15.0]), "all_reduce(AVG)")

    whole = torch.tensor([10 * rank], device=device)
    error = error_of(lambda: dist.all_reduce(whole, op=dist.ReduceOp.AVG))
    check("can't be cast" in error, True, "all_reduce(AVG) of integers")
    return {"floats": x, "integers": error}


# %%
if __name__ == "__main__":
    run(gloo_averages)

# %% [markdown]
# **Verdict.** False for floats, and true until torch 2.6: see the table above. (0 + 10 + 20 + 30) /
# 4 is 15, and integers are still refused: every rank prints `[15.0] result type Float can't be cast
# to the desired output type Long`.

# %% [markdown]
# ## Backends: MPI needs a PyTorch that you build yourself
#
# **Claim.** "To use MPI, build PyTorch from source on a machine that has MPI."
#
# **Verdict.** False. PyTorch's own MPI backend needs such a build, and the wheel lacks it. But a
# backend may also be a Python class that calls `mpi4py`.
# [Ours](../collectives/backends/mpi/group.py) is one, and runs on the wheel:
#
# ```console
# $ python -c "import torch.distributed as dist; print(dist.is_mpi_available())"
# False
# $ mpiexec -n 4 python lessons/all_reduce.py
# all_reduce: proved on all 4 ranks
# ```

# %% [markdown]
# ## Backends: NCCL cannot send and receive
#
# **Claim.** "NCCL has collectives only. For `send` and `recv` take gloo."
#
# **Verdict.** False since NCCL 2.7, which brought `ncclSend` and `ncclRecv` (documented).

# %% [markdown]
# ## Start: init is like touch
#
# **Claim.** "`init_process_group` is like `touch`: the first rank makes the group, and goes on. The
# others find it there."


# %%
@claim(ranks=4, fresh=True)
def init_waits_for_the_last(rank, world_size, device):
    if rank == 3:
        time.sleep(0.2)
    comes = time.monotonic()  # the same clock on every rank
    dist.init_process_group("gloo")
    leaves = time.monotonic()
    everyone = [None] * 4
    dist.all_gather_object(everyone, comes)
    there = sum(one <= leaves for one in everyone)
    check(there, 4, "init_process_group")
    dist.destroy_process_group()
    return {"ranks there when it returns": there}


# %%
if __name__ == "__main__":
    run(init_waits_for_the_last)

# %% [markdown]
# **Verdict.** False. Rank 3 comes late, and no rank returns before it has come: every rank prints
# `4`. If a rank never comes, the others wait until the time limit.

# %% [markdown]
# ## Start: torchrun sets NODE_RANK
#
# **Claim.** "torchrun tells each process the number of its machine in `NODE_RANK`."
#
# **Verdict.** False. The variable is `GROUP_RANK`. This is `env.py`, and what it prints:
#
# ```python
# import os
# print({name: os.environ.get(name) for name in ("RANK", "GROUP_RANK", "NODE_RANK")})
# ```
#
# ```console
# $ torchrun --standalone --nproc-per-node 1 env.py
# {'RANK': '0', 'GROUP_RANK': '0', 'NODE_RANK': None}
# ```

# %% [markdown]
# ## Calls: broadcast is a barrier
#
# **Claim.** "`broadcast` blocks until all ranks have called it."


# %%
@claim(ranks=4)
def broadcast_is_no_barrier(rank, world_size, device):
    x = torch.tensor([7 if rank == 0 else 0], device=device)
    done = torch.zeros(1, device=device)
    if rank == 3:
        dist.recv(done, src=0)  # rank 3 comes only after rank 0 has left the broadcast
    dist.broadcast(x, src=0)
    if rank == 0:
        dist.send(done + 1, dst=3)
    check(x, torch.tensor([7]), "broadcast")
    check(done, torch.tensor([1.0 if rank == 3 else 0.0]), "recv, before the broadcast")
    return {"x": x}


# %%
if __name__ == "__main__":
    run(broadcast_is_no_barrier)

# %% [markdown]
# **Verdict.** False. Rank 0 leaves, and only then does rank 3 come; still rank 3 prints `[7]`. If
# `broadcast` were a barrier, both would wait for ever. A rank waits for the data, and not for all
# other ranks.

# %% [markdown]
# ## Calls: a barrier flushes what was printed
#
# **Claim.** "Put a barrier after `print`, and the lines come in order."
#
# **Verdict.** False. `print` fills a buffer of its process, and a barrier does not empty it. The
# lesson [barrier](../notebooks/barrier.ipynb) runs this, and the mistake [printing in
# turn](../notebooks/mistakes/data.ipynb) shows the cure.

# %% [markdown]
# ## Calls: torch.empty(1) can receive any number
#
# **Claim.** "The receiver makes room with `torch.empty(1)`", after a sender that sends
# `torch.tensor([5])`.


# %%
@claim(ranks=2, symptom="dies")
def int64_into_empty(rank, world_size, device):
    x = torch.tensor([5], device=device) if rank == 0 else torch.empty(1, device=device)
    if rank == 0:
        dist.send(x, dst=1)
    else:
        dist.recv(x, src=0)
    check(x, torch.tensor([5]), "recv")


# %%
if __name__ == "__main__":
    run(int64_into_empty)

# %% [markdown]
# **Verdict.** False. `torch.tensor([5])` is an int64 of 8 bytes, `torch.empty(1)` a float32 of 4.
# The run prints `rank 1 died (SIGABRT)`: gloo ends the receiver's process, and no `try` can catch
# that. Write `torch.empty(1, dtype=torch.int64)`.

# %% [markdown]
# ## Calls: all_to_all takes tensors
#
# **Claim.** "`dist.all_to_all(output, input)`, where both are tensors with a row for each rank."


# %%
@claim(ranks=4)
def all_to_all_wants_lists(rank, world_size, device):
    x = torch.full((4,), rank, device=device)
    out = torch.full_like(x, -1)
    error = error_of(lambda: dist.all_to_all(out, x))
    check(error.startswith("Invalid function argument. Expected"), True, "all_to_all of tensors")

    dist.all_to_all_single(out, x)
    check(out, torch.arange(4), "all_to_all_single")
    return {"all_to_all_single": out, "all_to_all": error}


# %%
if __name__ == "__main__":
    run(all_to_all_wants_lists)

# %% [markdown]
# **Verdict.** False. `all_to_all` wants lists, and `all_to_all_single` takes tensors. The run
# prints `[0, 1, 2, 3] Invalid function argument. Expected parameter`.

# %% [markdown]
# ## Calls: isend may send to its own rank
#
# **Claim.** "Unlike `send`, `isend` can send to the rank itself." The documentation of `isend` says
# so, too.


# %%
@claim(ranks=2)
def isend_to_itself_is_refused(rank, world_size, device):
    error = error_of(lambda: dist.isend(torch.ones(1, device=device), dst=rank))
    reason = "Pair is not connected"
    check(reason in error, True, "isend to itself")
    return {"isend": reason}


# %%
if __name__ == "__main__":
    run(isend_to_itself_is_refused)

# %% [markdown]
# **Verdict.** False on gloo. Every rank prints `Pair is not connected`: gloo connects each rank
# with the others, and with no rank itself. Copy the tensor instead.

# %% [markdown]
# ## Training: the loss function all-reduces
#
# **Claim.** "In DDP, the loss function averages over all ranks."


# %%
@claim(ranks=4)
def loss_stays_local(rank, world_size, device):
    model = torch.nn.Linear(1, 1, bias=False, device=device)
    torch.nn.init.ones_(model.weight)
    x = torch.tensor([rank + 1.0], device=device)
    ddp = DistributedDataParallel(model)  # keep it: without it there is no reduction
    output = ddp(x)
    loss = torch.nn.functional.l1_loss(output, torch.zeros_like(output))
    check(loss.item(), rank + 1.0, "the loss")
    loss.backward()
    check(model.weight.grad, torch.tensor([[2.5]]), "DistributedDataParallel in backward()")
    return {"loss": loss.item(), "gradient": model.weight.grad.item()}


# %%
if __name__ == "__main__":
    run(loss_stays_local)

# %% [markdown]
# **Verdict.** False. Rank 0 prints `1.0 2.5`, and rank 3 prints `4.0 2.5`: each has a loss of its
# own, and all have the same gradient. DDP averages it, in `backward()`.

# %% [markdown]
# ## Training: gather, then average the loss
#
# **Claim.** "Call `all_gather(everyone, loss)`, then log `loss.mean()`."


# %%
@claim(ranks=4)
def gather_returns_its_result(rank, world_size, device):
    loss = torch.tensor([rank + 1.0], device=device)
    everyone = [torch.empty_like(loss) for _ in range(4)]
    dist.all_gather(everyone, loss)
    check(loss, torch.tensor([rank + 1.0]), "the input of all_gather")
    mean = torch.cat(everyone).mean()
    check(mean, torch.tensor(2.5), "all_gather")
    return {"loss.mean()": loss.mean(), "mean of what was gathered": mean}


# %%
if __name__ == "__main__":
    run(gather_returns_its_result)

# %% [markdown]
# **Verdict.** False. `all_gather` leaves its input as it was. Rank 0 prints `1.0 2.5`: its own
# loss, and the mean of all. Use what was gathered.

# %% [markdown]
# ## Training: the mean of the means is the mean
#
# **Claim.** "Average on each rank, then average the averages."


# %%
@claim(ranks=4)
def mean_of_means_is_another_number(rank, world_size, device):
    losses = torch.full(
        (rank + 1,), rank + 1.0, device=device
    )  # rank 3 has four samples, rank 0 has one
    mean = losses.mean()
    dist.all_reduce(mean)
    check(mean / 4, torch.tensor(2.5), "all_reduce of the means")

    both = torch.tensor([losses.sum(), len(losses)], device=device)
    dist.all_reduce(both)
    check(both[0] / both[1], torch.tensor(3.0), "all_reduce of sum and count")
    return {"mean of the means": mean / 4, "mean": both[0] / both[1]}


# %%
if __name__ == "__main__":
    run(mean_of_means_is_another_number)

# %% [markdown]
# **Verdict.** False, unless all ranks have the same number of samples. Here they are 1, 2, 2, 3, 3,
# 3, 4, 4, 4, 4, and 30 / 10 is 3. Every rank prints `2.5 3.0`. Reduce sum and count, then divide
# once.

# %% [markdown]
# ## Training: without set_epoch the model misses data
#
# **Claim.** "Call `sampler.set_epoch(epoch)`, also with `shuffle=False`, or the model sees only
# part of the data."


# %%
@claim(ranks=4)
def set_epoch_changes_the_order_only(rank, world_size, device):
    def samples(epoch, shuffle):
        sampler = DistributedSampler(range(8), shuffle=shuffle)
        sampler.set_epoch(epoch)
        return list(sampler)

    check(samples(0, shuffle=False), samples(1, shuffle=False), "set_epoch, shuffle=False")
    everyone = [None] * 4
    dist.all_gather_object(everyone, samples(0, shuffle=True))
    check(sorted(one for part in everyone for one in part), list(range(8)), "all_gather_object")
    return {
        "shuffle=False": samples(1, False),
        "epoch 0": samples(0, True),
        "epoch 1": samples(1, True),
    }


# %%
if __name__ == "__main__":
    run(set_epoch_changes_the_order_only)

# %% [markdown]
# **Verdict.** False. Without `set_epoch` every epoch is epoch 0, in which the ranks together see
# all 8 samples; only the order repeats. With `shuffle=False` there is one order, whatever the
# epoch. Rank 0 prints `[0, 4] [4, 2] [5, 7]`.

# %%
STEPS = [
    gloo_has_both,
    gloo_averages,
    init_waits_for_the_last,
    broadcast_is_no_barrier,
    int64_into_empty,
    all_to_all_wants_lists,
    isend_to_itself_is_refused,
    loss_stays_local,
    gather_returns_its_result,
    mean_of_means_is_another_number,
    set_epoch_changes_the_order_only,
]
