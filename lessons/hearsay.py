# %% [markdown]
"""
# hearsay

Claims that are often repeated, and a run for each. Some were true once. Some never were. What we
cannot run here is in a list of its own at the end.

You will see where a claim is repeated, what the run printed, and a verdict. If a verdict is wrong,
the run fails. Where no source is named, we know the claim from programs that contain it. Each run
has ranks of its own, on gloo and the CPU. The verdicts hold for torch 2.13, unless they name
another version.

    python lessons/hearsay.py
    torchrun --nproc-per-node 4 lessons/hearsay.py
"""

# %%
from collectives import check, counting, myth, run
import os
import time
import weakref
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

# %% [markdown]
# ## Backends: gloo lacks reduce_scatter and all_to_all
#
# **Claim.** "gloo has no `reduce_scatter` and no `all_to_all`: for these you need NCCL or MPI."
#
# **Said in** the table of [torch 2.3's
# documentation](https://docs.pytorch.org/docs/2.3/_sources/distributed.rst.txt), which many pages
# copied.


# %%
@myth(ranks=4)
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
# | call | 2.6 | 2.9 | 2.13 | 2.14 | 2.15 |
# |---|---|---|---|---|---|
# | `reduce_scatter` | refuses | works | works | works | works |
# | `reduce_scatter_single` | works | works | works | works | works |
# | `all_to_all` | refuses | refuses | works | works | works |
# | `all_to_all_single` | works | works | works | works | works |
# | `all_reduce`, `AVG` | refuses | works | works | works | works |

# %% [markdown]
# ## Backends: only NCCL can average
#
# **Claim.** "`ReduceOp.AVG` works on NCCL only. On gloo, sum and divide."
#
# **Said in** the documentation of
# [`ReduceOp`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.ReduceOp).


# %%
def error_of(call):
    """What a call that is refused says, in its first line."""
    try:
        call()
    except (TypeError, ValueError, RuntimeError, AssertionError) as error:
        return str(error).splitlines()[0]
    return "no error"


@myth(ranks=4)
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
# **Verdict.** False for floats on 2.9, true on 2.6: see the table above. (0 + 10 + 20 + 30) / 4 is
# 15, and integers are still refused: every rank prints `[15.0] result type Float can't be cast to
# the desired output type Long`.

# %% [markdown]
# ## Backends: MPI needs a PyTorch that you build yourself
#
# **Claim.** "To use MPI, build PyTorch from source on a machine that has MPI."
#
# **Said in** [PyTorch's
# forum](https://discuss.pytorch.org/t/why-does-the-mpi-backend-require-compiling-from-source/205363).
#
# **Verdict.** False. PyTorch's own MPI backend needs such a build, and the wheel lacks it. But a
# backend may also be a Python class that calls `mpi4py`.
# [Ours](../collectives/process_groups/mpi/group.py) is one, and runs on the wheel:
#
# ```console
# $ python -c "import torch.distributed as dist; print(dist.is_mpi_available())"
# False
# $ mpiexec -n 4 python lessons/all_reduce.py
# all_reduce: proved on all 4 ranks
# ```

# %% [markdown]
# ## Start: init is like touch
#
# **Claim.** "`init_process_group` is like `touch`: the first rank makes the group, and continues.
# The others find it."


# %%
@myth(ranks=4, fresh=True)
def init_waits_for_the_last(rank, world_size, device):
    if rank == 3:
        time.sleep(0.2)
    called = time.monotonic()  # the same clock on every rank
    dist.init_process_group("gloo")
    returned = time.monotonic()
    everyone = [None] * 4
    dist.all_gather_object(everyone, called)
    there = sum(one <= returned for one in everyone)
    check(there, 4, "init_process_group")
    dist.destroy_process_group()
    return {"ranks that had called when it returns": there}


# %%
if __name__ == "__main__":
    run(init_waits_for_the_last)

# %% [markdown]
# **Verdict.** False. Rank 3 is late, and no rank returns before it has called: every rank prints
# `4`. If a rank never calls, the others wait until the time limit.

# %% [markdown]
# ## Start: torchrun sets NODE_RANK
#
# **Claim.** "torchrun tells each process the number of its machine in `NODE_RANK`."
#
# **Seen in**
# [programs](https://huggingface.co/spaces/danielzest/GenD-Sentinel/blob/main/src/utils/constants.py)
# that read it and point to torchrun's documentation.
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
#
# **Said in** similar words on [a page for
# beginners](https://runebook.dev/en/docs/pytorch/generated/torch.cuda.comm.broadcast_coalesced).


# %%
@myth(ranks=4)
def broadcast_is_no_barrier(rank, world_size, device):
    x = torch.tensor([7 if rank == 0 else 0], device=device)
    done = torch.zeros(1, device=device)
    if rank == 3:
        dist.recv(done, src=0)  # rank 3 calls only after rank 0 has returned
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
# **Verdict.** False. Rank 0 returns, and only then does rank 3 call; still rank 3 prints `[7]`. If
# `broadcast` were a barrier, both would wait for ever. But this needs four ranks: on gloo a rank
# also waits for those to which it [sends the data on](../notebooks/broadcast.ipynb), and with two
# or three ranks the root sends to all.

# %% [markdown]
# ## Calls: scatter waits for everybody
#
# **Claim.** "`scatter` ends when all ranks have their piece."


# %%
@myth(ranks=4)
def scatter_is_no_barrier(rank, world_size, device):
    x, done = torch.zeros(1, device=device), torch.zeros(1, device=device)
    pieces = list(torch.tensor([1.0, 11.0, 21.0, 31.0], device=device).split(1))
    if rank == 3:
        dist.recv(done, src=1)  # rank 3 calls only after rank 1 has returned
    dist.scatter(x, pieces if rank == 0 else None, src=0)
    if rank == 1:
        dist.send(done + 1, dst=3)
    check(x, torch.tensor([10.0 * rank + 1]), "scatter")
    check(done, torch.tensor([1.0 if rank == 3 else 0.0]), "recv, before the scatter")
    return {"x": x}


# %%
if __name__ == "__main__":
    run(scatter_is_no_barrier)

# %% [markdown]
# **Verdict.** False. Rank 1 returns with its piece, and only then does rank 3 call: rank 1 prints
# `[11.0]`, and rank 3 prints `[31.0]`. On gloo the root does wait, because it sends to all.

# %% [markdown]
# ## Calls: trees and rings tolerate faults
#
# **Claim.** "In a tree or a ring, the other ranks continue when one fails."


# %%
@myth(ranks=4, fresh=True)
def one_lost_rank_stops_all(rank, world_size, device):
    dist.init_process_group("gloo")
    x = torch.ones(1, device=device)
    dist.all_reduce(x)
    first, error = x.item(), ""
    if rank < 3:
        error = error_of(lambda: dist.all_reduce(x))
    dist.destroy_process_group()  # rank 3 does so before the second all_reduce
    second = "not called" if rank == 3 else "works" if error == "no error" else "fails"
    check(second, "not called" if rank == 3 else "fails", "all_reduce without rank 3")
    return {"first": first, "second": second}


# %%
if __name__ == "__main__":
    run(one_lost_rank_stops_all)

# %% [markdown]
# **Verdict.** False. Every rank's number is part of the sum, so nobody can have it: rank 0 prints
# `4.0 fails`. A tree gives fewer steps, not spare ranks. To continue with fewer ranks, start [a new
# group](../notebooks/training/failover.ipynb). There are [special
# algorithms](https://www.sciencestack.ai/paper/2602.22445) that tolerate faults; neither gloo's nor
# NCCL's are among them.

# %% [markdown]
# ## Calls: a barrier flushes what was printed
#
# **Claim.** "Put a barrier after `print`, and the lines come in order."
#
# **Said in** [Ordering Output in MPI](https://w3toppers.com/ordering-output-in-mpi/), with a doubt.
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
@myth(ranks=2, symptom="dies")
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
@myth(ranks=4)
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
# ## Calls: broadcast goes to the tensor of the same name
#
# **Claim.** "`broadcast` copies a tensor to the tensor of the same name on all other ranks."


# %%
@myth(ranks=2)
def broadcast_knows_no_names(rank, world_size, device):
    data1, data2 = torch.tensor([7, -1], device=device).split(1)
    dist.broadcast(data1 if rank == 0 else data2, src=0)
    check(data2, torch.tensor([-1 if rank == 0 else 7]), "broadcast of data1 into data2")
    return {"data2": data2}


# %%
if __name__ == "__main__":
    run(broadcast_knows_no_names)

# %% [markdown]
# **Verdict.** False. Rank 0 sends `data1`, and rank 1 prints `[7]`: that is its `data2`. The order
# of the calls decides which tensors belong together. The root is `src`: torch knows no `osrc`.

# %% [markdown]
# ## Calls: with broadcast a rank needs room for its share only
#
# **Claim.** "To give each of four ranks 250 of 1,000 columns by `broadcast`, each needs a block of
# `[1000, 250]`."


# %%
@myth(ranks=4)
def broadcast_needs_room_for_all(rank, world_size, device):
    with counting() as counts:
        whole = torch.full((4, 250), float(rank), device=device)
        dist.broadcast(whole, src=0)
        share = torch.empty(250, device=device)
        dist.scatter(share, list(whole) if rank == 0 else None, src=0)
    check(whole[rank], share, "the share from broadcast")
    room = [whole.nbytes, share.nbytes]
    check(counts["c10d.broadcast"].bytes, 4 * share.nbytes, "bytes of broadcast")
    return {"bytes": room}


# %%
if __name__ == "__main__":
    run(broadcast_needs_room_for_all)

# %% [markdown]
# **Verdict.** False. Every rank prints `[4000, 1000]`: room for everything, with `scatter` room for
# its share. In a block that is too small, gloo [ends the
# process](../notebooks/mistakes/buffers.ipynb).

# %% [markdown]
# ## Calls: PREMUL_SUM makes a weighted sum
#
# **Claim.** "A weighted sum of the ranks is `PREMUL_SUM`", and below it a program that multiplies
# by three weights and calls SUM.


# %%
@myth(ranks=2)
def a_weight_belongs_to_a_rank(rank, world_size, device):
    x = torch.full((3,), rank + 1.0, device=device)
    premul = dist._make_nccl_premul_sum(2.0)
    error = error_of(lambda: dist.all_reduce(x, op=premul))
    check(error, "Cannot use ReduceOp.PREMUL_SUM with Gloo", "all_reduce(PREMUL_SUM)")
    by_place = x * torch.tensor([0.5, 0.25, 0.25], device=device)
    dist.all_reduce(by_place)
    by_rank = x * [0.75, 0.25][rank]
    dist.all_reduce(by_rank)
    check(by_rank, torch.full((3,), 0.75 * 1 + 0.25 * 2), "weighted sum")
    check(by_place, torch.tensor([1.5, 0.75, 0.75]), "a weight for each place")
    return {"by place": by_place, "by rank": by_rank}


# %%
if __name__ == "__main__":
    run(a_weight_belongs_to_a_rank)

# %% [markdown]
# **Verdict.** False on gloo, which refuses PREMUL_SUM, and the program is no weighted sum of the
# ranks. Every rank prints `[1.5, 0.75, 0.75] [1.25, 1.25, 1.25]`: three weights for three places,
# and a weight for each rank. Multiply by the weight of your own rank, then use SUM.

# %% [markdown]
# ## Calls: a program that works with two ranks works with three
#
# **Claim.** "`if rank == 0: send(x, 1) else: recv(x, 0)` shows how ranks talk", in programs that
# take any number of ranks.


# %%
@myth(ranks=3, fresh=True)
def nobody_sends_to_the_third(rank, world_size, device):
    dist.init_process_group("gloo")
    x = torch.tensor([7.0 if rank == 0 else -1.0], device=device)
    if rank == 0:
        dist.send(x, dst=1)
        error = "no error"
    else:
        error = error_of(lambda: dist.recv(x, src=0))
    check(error != "no error", rank == 2, "recv of a message that nobody sends")
    dist.destroy_process_group()
    return {"x": x, "recv": "fails" if rank == 2 else "works"}


# %%
if __name__ == "__main__":
    run(nobody_sends_to_the_third)

# %% [markdown]
# **Verdict.** False. Rank 1 prints `[7.0] works`, and rank 2 prints `[-1.0] fails`. It waits for a
# message that nobody sends until rank 0 closes the connection. Send to each rank, or let rank 2 do
# something else.

# %% [markdown]
# ## Calls: isend may send to its own rank
#
# **Claim.** "Unlike `send`, `isend` can send to the rank itself."
#
# **Said in** its documentation (`torch/distributed/distributed_c10d.py`: "Unlike send, which is
# blocking, isend allows src == dst rank, i.e. send to self").


# %%
@myth(ranks=2)
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
#
# **Said in** [an issue](https://github.com/cybertronai/transformer-xl/issues/14), whose author
# assumed it, and found that it is not so.


# %%
@myth(ranks=4)
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
# **Claim.** "Call `all_gather(everyone, loss)`, then log `loss.mean()`."
#
# **Seen in** [examples of Accelerate](https://github.com/huggingface/accelerate/pull/399), which
# logged the loss of one process, as a reader found.


# %%
@myth(ranks=4)
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
# **Claim.** "Average on each rank, then average the averages."
#
# **Seen in** [AllenNLP](https://github.com/allenai/allennlp/issues/4347), as the issue reports.


# %%
@myth(ranks=4)
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
# ## Training: all_reduce of the squares gives the norm
#
# **Claim.** "For the L2 norm of a tensor over all ranks, square it, `all_reduce` it, and take the
# root."


# %%
@myth(ranks=3)
def a_norm_is_one_number(rank, world_size, device):
    x = torch.arange(1.0, 4.0, device=device) + rank
    squares = x.square()
    dist.all_reduce(squares)
    total = x.square().sum()
    dist.all_reduce(total)

    everyone = [torch.empty_like(x) for _ in range(3)]
    dist.all_gather(everyone, x / squares.sqrt())
    by_place = torch.cat(everyone).norm()
    check(by_place, torch.tensor(3.0).sqrt(), "norm, divided by a root for each place", rtol=1e-6)
    dist.all_gather(everyone, x / total.sqrt())
    by_all = torch.cat(everyone).norm()
    check(by_all, torch.tensor(1.0), "norm, divided by one root", rtol=1e-6)
    return {"squares": squares, "by place": round(by_place.item(), 4), "by all": total}


# %%
if __name__ == "__main__":
    run(a_norm_is_one_number)

# %% [markdown]
# **Verdict.** False. Every rank prints `[14.0, 29.0, 50.0] 1.7321 93.0`: the first is one sum a
# place, so what is divided by its root has the norm 1.7321 and not 1. Add up your own squares to
# one number first; 93 is the sum of all. This is normalisation. Regularisation is another thing: it
# adds the norm to the loss.

# %% [markdown]
# ## Training: without set_epoch the model misses data
#
# **Claim.** "Call `sampler.set_epoch(epoch)`, also with `shuffle=False`, or the model sees only
# part of the data."
#
# **Said in** [an issue](https://github.com/pytorch/pytorch/issues/31232), of the data that a GPU
# loads.


# %%
@myth(ranks=4)
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

# %% [markdown]
# ## Training: a DistributedSampler makes one data set of many
#
# **Claim.** "With a DistributedSampler the ranks train on disjoint parts of one data set", in a
# program whose `Dataset` draws random numbers on each rank.
#
# **Seen in** the [program of an issue](https://github.com/pytorch/pytorch/issues/31771).


# %%
@myth(ranks=4)
def a_sampler_deals_out_numbers_of_places(rank, world_size, device):
    data = [10 * rank + place for place in range(1, 9)]  # each rank has made its own
    mine = [data[place] for place in DistributedSampler(data, shuffle=False)]
    everyone = [None] * 4
    dist.all_gather_object(everyone, mine)
    used = sorted(one for part in everyone for one in part)
    check(used == data, False, "DistributedSampler of four data sets")
    check(used, [1, 5, 12, 16, 23, 27, 34, 38], "DistributedSampler of four data sets")
    return {"own data": [*data[:2], "..."], "used by all": used}


# %%
if __name__ == "__main__":
    run(a_sampler_deals_out_numbers_of_places)

# %% [markdown]
# **Verdict.** False. A sampler deals out places, not data. Rank 0 prints `[1, 2, '...'] [1, 5, 12,
# 16, 23, 27, 34, 38]`: two samples of each of four data sets, and six of each are never used. Give
# all ranks the same seed before they make the data.

# %% [markdown]
# ## Training: one DDP process can drive several cards
#
# **Claim.** "`DDP(model, device_ids=[0, 1])` splits the batch over two GPUs of this process."
#
# **Said in** the [README of PyTorch's own example](https://github.com/pytorch/examples/issues/936),
# as the issue reports.


# %%
@myth(ranks=2)
def ddp_takes_one_card(rank, world_size, device):
    model = torch.nn.Linear(1, 1, device=device)
    error = error_of(lambda: DistributedDataParallel(model, device_ids=[0, 1]))
    said = "device_ids can only be None or contain a single element."
    check(said in error, True, "DistributedDataParallel")
    return {"DDP": said}


# %%
if __name__ == "__main__":
    run(ddp_takes_one_card)

# %% [markdown]
# **Verdict.** False, and it needs no GPU to see it: every rank prints `device_ids can only be None
# or contain a single element.`, a `ValueError`. Start one process per card.

# %% [markdown]
# ## Training: add up the losses, then one backward
#
# **Claim.** "To save memory, add up the losses of several micro-batches, and call `backward` once."
#
# **Asked in** [an issue](https://github.com/lhoyer/DAFormer/issues/48), where it is answered.


# %%
class Kept:
    """A tensor that autograd keeps for `backward`."""

    def __init__(self, tensor):
        self.tensor = tensor


def most_kept(model, batches, once):
    """How many tensors autograd keeps at most: `backward` at the end, or after each batch."""
    kept, counts, total = weakref.WeakSet(), [], 0

    def pack(tensor):
        one = Kept(tensor)
        kept.add(one)
        return one

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda one: one.tensor):
        for batch in batches:
            loss = model(batch).square().mean()
            counts.append(len(kept))
            if once:
                total = total + loss
            else:
                loss.backward()
            del loss
    if once:
        total.backward()
    return max(counts)


@myth(ranks=2)
def one_backward_keeps_every_graph(rank, world_size, device):
    model = torch.nn.Linear(1, 1, device=device)
    batches = torch.ones(4, 8, 1, device=device)
    each, once = most_kept(model, batches, once=False), most_kept(model, batches, once=True)
    check(once, 4 * each, "tensors kept by autograd")
    return {"backward for each": each, "once at the end": once}


# %%
if __name__ == "__main__":
    run(one_backward_keeps_every_graph)

# %% [markdown]
# **Verdict.** False. Every rank prints `2 8`: with four micro-batches, autograd keeps four times as
# many tensors. Call `backward` for each micro-batch: gradients [add
# up](../notebooks/training/accumulation.ipynb), and each graph is freed.

# %% [markdown]
# ## Training: the usual accumulation loop uses every batch
#
# **Claim.** "`if (i + 1) % k == 0: optimizer.step()` trains on all batches."
#
# **Said in** a [widely copied
# loop](https://discuss.pytorch.org/t/pytorch-gradient-accumulation/55955).


# %%
@myth(ranks=2)
def the_last_batches_are_lost(rank, world_size, device):
    weight = torch.nn.Parameter(torch.zeros(1, device=device))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    batches, k = torch.ones(7, device=device), 2
    for i, batch in enumerate(batches):
        (weight * batch).sum().backward()
        if (i + 1) % k == 0:
            optimizer.step()
            optimizer.zero_grad()
    used = round(-weight.item())  # each batch that counts makes it smaller by 1
    check(used, 6, "batches that changed the weight")
    return {"batches": len(batches), "used": used}


# %%
if __name__ == "__main__":
    run(the_last_batches_are_lost)

# %% [markdown]
# **Verdict.** False, unless k divides the number of batches. Every rank prints `7 6`. The last
# gradient is dropped, or is added to those of the next epoch. Call `step` after the last batch,
# too.

# %% [markdown]
# ## Training: a program with Accelerate destroys its group
#
# **Claim.** "A program with Accelerate ends with `dist.destroy_process_group()`."


# %%
@myth(ranks=1, fresh=True)
def accelerate_may_have_no_group(rank, world_size, device):
    from accelerate import Accelerator

    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)  # as if `python` had started the program
    accelerator = Accelerator(cpu=True)
    ranks, group = accelerator.num_processes, dist.is_initialized()
    check([ranks, group], [1, False], "ranks, and whether there is a group")
    error = error_of(dist.destroy_process_group)
    check(error, "Process group cannot be None", "destroy_process_group")
    accelerator.end_training()  # right with a group and without one
    return {"ranks": ranks, "group": group, "destroy_process_group": error}


# %%
if __name__ == "__main__":
    run(accelerate_may_have_no_group)

# %% [markdown]
# **Verdict.** False if `python` starts the program: Accelerate then makes no group, and the line
# raises an `AssertionError`. The run prints `1 False Process group cannot be None`. Call
# `accelerator.end_training()`, which destroys the group if there is one.

# %% [markdown]
# ## Training: accelerator.save has plain keys
#
# **Claim.** "`accelerator.save(model.state_dict(), file)` can be loaded into the bare model."
#
# **Said in** an [issue of Accelerate](https://github.com/huggingface/accelerate/issues/438), which
# found that it cannot.


# %%
@myth(ranks=2)
def accelerate_keeps_the_prefix(rank, world_size, device):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(torch.nn.Linear(1, 1, bias=False))
    prepared = list(model.state_dict())
    plain = list(accelerator.unwrap_model(model).state_dict())
    check([prepared, plain], [["module.weight"], ["weight"]], "state_dict")
    return {"prepared": prepared, "unwrapped": plain}


# %%
if __name__ == "__main__":
    run(accelerate_keeps_the_prefix)

# %% [markdown]
# **Verdict.** False. `prepare` wraps the model in DDP, which puts `module.` before each key, and
# `save` writes what it is given. Every rank prints `['module.weight'] ['weight']`. Save
# `accelerator.unwrap_model(model).state_dict()`.

# %% [markdown]
# ## Training: SyncBatchNorm all-reduces mean and variance
#
# **Claim.** "SyncBatchNorm averages the means and the variances of the ranks by `all_reduce`."


# %%
@myth(ranks=2)
def batch_norm_needs_the_counts(rank, world_size, device):
    x = torch.tensor([[0.0], [4.0, 4.0, 8.0]][rank], device=device)  # one sample and three
    average = x.mean()
    dist.all_reduce(average)
    average /= 2

    mine = torch.stack([x.mean(), torch.tensor(float(len(x)), device=device)])
    pairs = [torch.empty_like(mine) for _ in range(2)]
    dist.all_gather(pairs, mine)  # as SyncBatchNorm does
    means, counts = torch.stack(pairs).T
    gathered = (means * counts).sum() / counts.sum()
    check(gathered, torch.tensor(4.0), "mean of all samples, from all_gather")
    check((average == gathered).item(), False, "mean of all samples, from all_reduce")
    return {"all_reduce": average, "all_gather": gathered}


# %%
if __name__ == "__main__":
    run(batch_norm_needs_the_counts)

# %% [markdown]
# **Verdict.** False. Rank 0 prints `2.6667 4.0`: the mean of 0, 4, 4 and 8 is 4. The class gathers
# mean, inverse deviation and count of each rank. It runs on GPUs only; its source says why it
# gathers (`torch/nn/modules/_functions.py`: "simple all reduce op can not give correct results").

# %% [markdown]
# ## Documented, not run
#
# - "gloo has only `broadcast` and `all_reduce` on GPUs, and NCCL lacks nothing there." Said in the
#   table of torch 2.3. On GPUs, [today's
#   table](https://docs.pytorch.org/docs/stable/distributed.html#backends) has every call for NCCL,
#   and for gloo all but `send`, `recv`, `all_to_all` and `barrier`. MPI takes CUDA tensors only if
#   its library was built for it.
# - "NCCL has collectives only. For `send` and `recv` take gloo." Said in the table of [torch 1.10's
#   documentation](https://docs.pytorch.org/docs/1.10/_sources/distributed.rst.txt). False since
#   [NCCL 2.7](https://github.com/llnl/Aluminum/pull/71).
# - "DataParallel communicates in `optimizer.step()`." False: it copies the model in each forward
#   pass and adds gradients in backward (`torch/nn/parallel/data_parallel.py`: "In the forward pass,
#   the module is replicated on each device").
# - "Python 3.12 has no GIL." False: the [first draft](https://github.com/python/peps/pull/2955) of
#   PEP 703 named 3.12. Since Python 3.13 there is [a separate
#   build](https://docs.python.org/3.13/whatsnew/3.13.html#free-threaded-cpython) without it.

# %%
STEPS = [
    gloo_has_both,
    gloo_averages,
    init_waits_for_the_last,
    broadcast_is_no_barrier,
    scatter_is_no_barrier,
    one_lost_rank_stops_all,
    int64_into_empty,
    all_to_all_wants_lists,
    broadcast_knows_no_names,
    broadcast_needs_room_for_all,
    a_weight_belongs_to_a_rank,
    nobody_sends_to_the_third,
    isend_to_itself_is_refused,
    loss_stays_local,
    gather_returns_its_result,
    mean_of_means_is_another_number,
    a_norm_is_one_number,
    set_epoch_changes_the_order_only,
    a_sampler_deals_out_numbers_of_places,
    ddp_takes_one_card,
    one_backward_keeps_every_graph,
    the_last_batches_are_lost,
    accelerate_may_have_no_group,
    accelerate_keeps_the_prefix,
    batch_norm_needs_the_counts,
]
