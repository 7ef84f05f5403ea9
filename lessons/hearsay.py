# %% [markdown]
"""
# hearsay: claims about distributed PyTorch that are often repeated, tested

Claims about distributed PyTorch that are often repeated, each with a program that tests it.

You have probably read that gloo cannot do `reduce_scatter`, that `broadcast` is a barrier, or that
the model misses data without `set_epoch`. Such sentences are copied from page to page. Some were
true once, others never were, and from the sentence alone you cannot tell which.

Here we run them. Each section has one claim, where it is said, a short program that would behave
differently if the claim were true, and a verdict. At the end you can forget a dozen claims, and you
know how to test the next one that you meet.

Where we name no page, we know the claim from programs that rely on it. The programs run on gloo and
the CPU, and the verdicts hold for torch 2.13 unless they name another version. They cannot go stale
in silence: if a claim becomes true, its program fails.

    python lessons/hearsay.py
    torchrun --nproc-per-node 4 lessons/hearsay.py
"""

# %%
from collectives import check, myth, note_calls, run
import os
import weakref
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

# %% [markdown]
# ## Backends: gloo lacks reduce_scatter, all_to_all and averages
#
# **Claim.** "gloo has no `reduce_scatter` and no `all_to_all`, so you need NCCL or MPI for these.
# `ReduceOp.AVG` works on NCCL only: on gloo, take the sum and divide."
#
# **Said in** the table of [torch 2.3's
# documentation](https://docs.pytorch.org/docs/2.3/_sources/distributed.rst.txt), which many pages
# copied, and in the documentation of
# [`ReduceOp`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.ReduceOp).


# %%
@myth(ranks=4)
def gloo_has_all_three(rank, world_size, device):
    ones = list(torch.ones(4, device=device).split(1))
    total = torch.empty(1, device=device)
    dist.reduce_scatter(total, ones)
    check(total, torch.tensor([4.0]), "reduce_scatter(SUM)")

    mine = list(torch.full((4,), float(rank), device=device).split(1))
    theirs = list(torch.empty(4, device=device).split(1))
    dist.all_to_all(theirs, mine)
    check(torch.cat(theirs), torch.arange(4.0), "all_to_all")

    mean = torch.tensor([10.0 * rank], device=device)
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    check(mean, torch.tensor([15.0]), "all_reduce(AVG)")
    return {"reduce_scatter": total, "all_to_all": torch.cat(theirs), "AVG": mean}


# %%
if __name__ == "__main__":
    run(gloo_has_all_three)

# %% [markdown]
# **Verdict.** False today, although each part was true once. Every rank prints `[4.0] [0.0, 1.0,
# 2.0, 3.0] [15.0]`, where 15 is the mean of 0, 10, 20 and 30. gloo learned these calls one after
# the other: the forms that take one tensor came first, and those that take lists followed. This is
# what we measured on five versions of torch:
#
# | call | 2.6 | 2.9 | 2.13 | 2.14 | 2.15 |
# |---|---|---|---|---|---|
# | `reduce_scatter` | refuses | works | works | works | works |
# | `reduce_scatter_single` | works | works | works | works | works |
# | `all_to_all` | refuses | refuses | works | works | works |
# | `all_to_all_single` | works | works | works | works | works |
# | `all_reduce`, `AVG` | refuses | works | works | works | works |

# %% [markdown]
# ## Backends: MPI needs a PyTorch that you build yourself
#
# **Claim.** "To use MPI, build PyTorch from source on a machine that has MPI."
#
# **Said in** [PyTorch's
# forum](https://discuss.pytorch.org/t/why-does-the-mpi-backend-require-compiling-from-source/205363).
#
# **Verdict.** False, but you can see where it comes from. PyTorch's own MPI backend needs such a
# build, and the wheel lacks it. A backend does not have to be compiled into torch, however: it may
# also be a Python class, and a Python class can call `mpi4py`.
# [Ours](../collectives/process_groups/mpi/group.py) does, which is why it runs on the wheel:
#
# ```console
# $ python -c "import torch.distributed as dist; print(dist.is_mpi_available())"
# False
# $ mpiexec -n 4 python lessons/all_reduce.py
# all_reduce: proved on all 4 ranks
# ```

# %% [markdown]
# ## Calls: broadcast is a barrier
#
# **Claim.** "`broadcast` blocks until all ranks have called it."
#
# **Said in** similar words on [a page for
# beginners](https://runebook.dev/en/docs/pytorch/generated/torch.cuda.comm.broadcast_coalesced).
#
# If this were true, you could use a `broadcast` to make the ranks wait for each other. So in this
# program rank 3 refuses to call `broadcast` until rank 0 has returned from it.


# %%
@myth(ranks=4)
def broadcast_is_no_barrier(rank, world_size, device):
    calls = note_calls()  # what this rank calls from here on
    x = torch.tensor([7 if rank == 0 else 0], device=device)
    done = torch.zeros(1, device=device)
    if rank == 3:
        dist.recv(done, src=0)  # rank 3 calls only after rank 0 has returned
    dist.broadcast(x, src=0)
    if rank == 0:
        dist.send(done + 1, dst=3)
    check(x, torch.tensor([7]), "broadcast")
    check(done, torch.tensor([1.0 if rank == 3 else 0.0]), "recv, before the broadcast")
    order = {0: ["broadcast", "send"], 3: ["recv", "broadcast"]}.get(rank, ["broadcast"])
    check([call.name for call in calls], order, "rank 3 calls after rank 0 has returned")
    return {"x": x}


# %%
if __name__ == "__main__":
    run(broadcast_is_no_barrier)

# %% [markdown]
# **Verdict.** False. Rank 0 returns, only then does rank 3 make the call, and still rank 3 prints
# `[7]`. If `broadcast` were a barrier, ranks 0 and 3 would wait for each other for ever. The same
# is true of `scatter`, where a rank leaves with its piece, whether others have called it or not.
#
# You do not see this with two or three ranks. On gloo a rank also waits for the ranks to which it
# [sends the data on](../notebooks/broadcast.ipynb), and in so small a group the root sends to all
# of them.

# %% [markdown]
# ## Calls: trees and rings tolerate faults
#
# **Claim.** "In a tree or a ring, the other ranks continue when one fails."
#
# Here rank 3 takes part in one `all_reduce`, and leaves before the second.


# %%
def error_of(call):
    """The first line of the error that a call raises."""
    try:
        call()
    except (TypeError, ValueError, RuntimeError, AssertionError) as error:
        return str(error).splitlines()[0]
    return "no error"


@myth(ranks=4, fresh=True)
def one_lost_rank_stops_all(rank, world_size, device):
    dist.init_process_group("gloo")
    x = torch.ones(1, device=device)
    dist.all_reduce(x)
    first, second = x.item(), "not called"
    if rank < 3:
        error = error_of(lambda: dist.all_reduce(x))
        second = "works" if error == "no error" else "fails"
    dist.destroy_process_group()  # rank 3 does so before the second all_reduce
    check(second, "not called" if rank == 3 else "fails", "all_reduce without rank 3")
    return {"first": first, "second": second}


# %%
if __name__ == "__main__":
    run(one_lost_rank_stops_all)

# %% [markdown]
# **Verdict.** False. The number of every rank is part of the sum, so without rank 3 nobody can have
# the sum, whatever the route: rank 0 prints `4.0 fails`. A tree saves rounds, and has no spare
# ranks.
#
# To continue with fewer ranks, start [a new group](../notebooks/training/failover.ipynb). There are
# [special algorithms](https://www.sciencestack.ai/paper/2602.22445) that tolerate faults, but gloo
# and NCCL do not use them.

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
# **Verdict.** False. Room for one number is not enough, because the bytes must fit as well:
# `torch.tensor([5])` is an int64 of 8 bytes, and `torch.empty(1)` is a float32 of 4. What makes
# this mistake costly is how it ends. The run prints `rank 1 died (SIGABRT)`: gloo aborts the
# receiver's process, so no `try` can catch it. Write `torch.empty(1, dtype=torch.int64)`.

# %% [markdown]
# ## Calls: broadcast goes to the tensor of the same name
#
# **Claim.** "`broadcast` copies a tensor to the tensor of the same name on all other ranks."
#
# Both ranks have a `data1` and a `data2`. Rank 0 passes its `data1`, and rank 1 passes its `data2`.


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
# **Verdict.** False. A name exists in one process only, and torch never sends it. The call on rank
# 1 receives into the tensor that rank 1 passed, so rank 1 prints `[7]`, and that is its `data2`.
# The order of the calls alone decides which tensors belong together.

# %% [markdown]
# ## Training: the loss function all-reduces
#
# **Claim.** "In DDP, the loss function averages over all ranks."
#
# **Said in** [an issue](https://github.com/cybertronai/transformer-xl/issues/14), whose author had
# assumed it and found that it is not so.


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
# **Verdict.** False, and it matters as soon as you log the loss. Rank 0 prints `1.0 2.5`, and rank
# 3 prints `4.0 2.5`: the losses differ and the gradients agree. A loss function knows nothing of
# the other ranks. DDP averages, but it averages the gradients, in `backward()`.

# %% [markdown]
# ## Training: without set_epoch the model misses data
#
# **Claim.** "Call `sampler.set_epoch(epoch)`, also with `shuffle=False`, or the model sees only
# part of the data."
#
# **Said in** [an issue](https://github.com/pytorch/pytorch/issues/31232), about the data that one
# GPU loads.


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
# **Verdict.** False: `set_epoch` changes the order, and nothing else. Without it every epoch is
# epoch 0, and in epoch 0 the ranks together see all 8 samples. You should call it all the same,
# because otherwise every epoch has the order of the first. With `shuffle=False` there is only one
# order, so the call has no effect there. Rank 0 prints `[0, 4] [4, 2] [5, 7]`.

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
# **Verdict.** False. A sampler deals out positions, and each rank looks up its positions in
# whatever data it has. Rank 0 prints `[1, 2, '...'] [1, 5, 12, 16, 23, 27, 34, 38]`. These are two
# samples from each of four data sets, so six of every eight samples are never used. The cure is one
# line: set the same seed on all ranks before they make the data.

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
# **Verdict.** False, and you need no GPU to see it. DDP refuses the list with a `ValueError`, so
# every rank prints `device_ids can only be None or contain a single element.` Start one process for
# each card instead.

# %% [markdown]
# ## Training: add up the losses, then one backward
#
# **Claim.** "To save memory, add up the losses of several micro-batches, and call `backward` once."
#
# **Asked in** [an issue](https://github.com/lhoyer/DAFormer/issues/48), where it is also answered.
#
# Memory goes to the tensors that autograd keeps for `backward`, so this program counts them.


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
# **Verdict.** False. The gradient is the same, but no memory is saved: every rank prints `2 8`,
# because with one `backward` at the end autograd keeps the tensors of all four micro-batches until
# then. Call `backward` for each micro-batch. The gradients [add
# up](../notebooks/training/accumulation.ipynb) anyway, and each graph is freed before the next one
# is built.

# %% [markdown]
# ## Training: a program with Accelerate destroys its group
#
# **Claim.** "A program with Accelerate ends with `dist.destroy_process_group()`."
#
# The step first removes torchrun's variables, so it runs as if you had started it with `python`.


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
# **Verdict.** False if you start the program with `python`. Accelerate then makes no group, so
# there is nothing to destroy, and the last line of your program raises an `AssertionError` after
# all the training is done. The run prints `1 False Process group cannot be None`. Call
# `accelerator.end_training()`, which destroys the group if there is one.

# %% [markdown]
# ## Documented, not run
#
# We cannot test these four here, because they need GPUs, an old version or another interpreter. The
# sources answer them.
#
# - "gloo has only `broadcast` and `all_reduce` on GPUs, and NCCL lacks nothing there." This is in
#   the table of torch 2.3. On GPUs, [today's
#   table](https://docs.pytorch.org/docs/stable/distributed.html#backends) has every call for NCCL,
#   and for gloo all but `send`, `recv`, `all_to_all` and `barrier`. MPI takes CUDA tensors only if
#   its library was built for it.
# - "NCCL has collectives only. For `send` and `recv` take gloo." This is in the table of [torch
#   1.10's documentation](https://docs.pytorch.org/docs/1.10/_sources/distributed.rst.txt), and has
#   been false since [NCCL 2.7](https://github.com/llnl/Aluminum/pull/71).
# - "DataParallel communicates in `optimizer.step()`." False: it copies the model in each forward
#   pass, and adds up the gradients in backward (`torch/nn/parallel/data_parallel.py`: "In the
#   forward pass, the module is replicated on each device").
# - "Python 3.12 has no GIL." False: only the [first
#   draft](https://github.com/python/peps/pull/2955) of PEP 703 named 3.12. Since Python 3.13 there
#   is [a separate build](https://docs.python.org/3.13/whatsnew/3.13.html#free-threaded-cpython)
#   without it.

# %%
STEPS = [
    gloo_has_all_three,
    broadcast_is_no_barrier,
    one_lost_rank_stops_all,
    int64_into_empty,
    broadcast_knows_no_names,
    loss_stays_local,
    set_epoch_changes_the_order_only,
    a_sampler_deals_out_numbers_of_places,
    ddp_takes_one_card,
    one_backward_keeps_every_graph,
    accelerate_may_have_no_group,
]
