# %% [markdown]
"""
# training: validation, micro-batches, DDP and checkpoints gone wrong

A model trains on several ranks, and the loop around the collectives goes wrong: validation,
micro-batches, DDP, batch norm, checkpoints.

Most of these loops look right, because on one process they are. But on several ranks a line under
`if rank == 0` may contain a collective, and what is not a parameter belongs to one rank alone. At
the end of this lesson you know which parts of a training loop to look at again before it runs on
more than one rank.

Find each mistake yourself first: read "You see" and the program, and say which line is wrong. Then
open the output, the answer, and the cure below it.

    python lessons/mistakes/training.py
    torchrun --nproc-per-node 4 lessons/mistakes/training.py
"""

# %%
from collectives import check, cure, mistake, run, span
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

# %% [markdown]
# ## Program 1: a validation between two epochs
#
# **You see.** The training stops after the first epoch, without a message. On gloo, errors follow
# after 30 minutes:
#
# ```text
# RuntimeError: [.../gloo/transport/tcp/unbound_buffer.cc:129] Timed out waiting 1800000ms for send operation to complete
# ```


# %%
def validate(loss, world_size):
    """The sum of all ranks' losses: each rank has samples of its own."""
    losses = [torch.zeros_like(loss) for _ in range(world_size)]
    dist.all_gather(losses, loss)
    return sum(losses)


@mistake("hangs", ranks=3)
def validate_between_epochs(rank, world_size, device):
    loss = torch.tensor([10.0**rank], device=device)
    if rank == 0:  # the others continue with the next epoch
        validate(loss, world_size)
    gradient = torch.tensor([2 * 10.0**rank], device=device)
    dist.all_reduce(gradient)
    check(gradient, torch.tensor([222.0]), "all_reduce(SUM)")


# %%
if __name__ == "__main__":
    run(validate_between_epochs, folded=True)

# %% [markdown]
# <details><summary>What is wrong?</summary>
#
# **Cause: only rank 0 validates.** `validate` contains a collective, which only rank 0 calls, while
# ranks 1 and 2 are in the next collective of the training. The collective need not be in your own
# code: the forward pass of a DDP model with batch norm broadcasts the statistics.
#
# **Cure.** All ranks validate, each with its share of the samples, and rank 0 prints the result.
#
# **Early.** Look at every function that is called under `if rank == 0`. If rank 0 must validate
# alone, it must call no collective, and the time limit of the group must be longer than the
# validation. `TORCH_DISTRIBUTED_DEBUG=DETAIL` finds this mistake:
#
# ```text
# RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective:
# CollectiveFingerPrint(SequenceNumber=0, OpType=ALLGATHER, ... but Rank 1 is running collective:
# CollectiveFingerPrint(SequenceNumber=0, OpType=ALLREDUCE, ...
# ```
#
# </details>


# %%
@cure(ranks=3)
def every_rank_validates(rank, world_size, device):
    loss = torch.tensor([10.0**rank], device=device)
    total = validate(loss, world_size)
    gradient = torch.tensor([2 * 10.0**rank], device=device)
    dist.all_reduce(gradient)
    check(total, torch.tensor([111.0]), "all_gather, sum")
    check(gradient, torch.tensor([222.0]), "all_reduce(SUM)")
    return {"loss": total, "gradient": gradient}


# %%
if __name__ == "__main__":
    run(every_rank_validates, folded=True)

# %% [markdown]
# ## Program 2: five micro-batches
#
# **You see.** Two ranks add up the gradients of two
# [micro-batches](../../docs/glossary.md#micro-batch) before each step. There is no error, but the
# weight after an epoch is wrong.


# %%
@mistake("wrong numbers", ranks=2)
def gradients_of_micro_batches(rank, world_size, device):
    weight = torch.zeros(1, device=device, requires_grad=True)
    micro_batches = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0], device=device) * 10**rank
    for i, x in enumerate(micro_batches):
        (weight * x).sum().backward()  # adds x to the gradient
        if (i + 1) % 2 == 0:
            dist.all_reduce(weight.grad)
            weight.data -= weight.grad
            weight.grad = None
    check(weight.data, torch.tensor([-165.0]), "minus the sum of all micro-batches")


# %%
if __name__ == "__main__":
    run(gradients_of_micro_batches, folded=True)

# %% [markdown]
# <details><summary>What is wrong?</summary>
#
# **Cause: the last micro-batch is left over.** The usual loop with `(i + 1) % 2 == 0` does not use
# every micro-batch: it makes a step after the second and after the fourth, but the gradients of the
# fifth, 5 and 50, are neither reduced nor used: 165 - 55 = 110. In the next epoch they are added to
# a gradient that they have nothing to do with, or `zero_grad` deletes them.
#
# **Cure.** Make a step after the last micro-batch, too. (If you divide the loss by the number of
# micro-batches of a step, divide by the smaller number in the last step.) Or drop the rest on
# purpose, in the loader.
#
# **Early.** Count the samples that your steps have used in an epoch, and compare the count with the
# length of the data set.
#
# </details>


# %%
@cure(ranks=2)
def step_after_the_last_one_too(rank, world_size, device):
    weight, steps = torch.zeros(1, device=device, requires_grad=True), 0
    micro_batches = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0], device=device) * 10**rank
    for i, x in enumerate(micro_batches):
        (weight * x).sum().backward()
        if (i + 1) % 2 == 0 or i + 1 == len(micro_batches):
            dist.all_reduce(weight.grad)
            weight.data -= weight.grad
            weight.grad = None
            steps += 1
    check(steps, 3, "steps: two after two micro-batches, and one after the last")
    check(weight.data, torch.tensor([-165.0]), "minus the sum of all micro-batches")
    return {"weight": weight.data}


# %%
if __name__ == "__main__":
    run(step_after_the_last_one_too, folded=True)

# %% [markdown]
# ## Program 3: two steps with DDP
#
# **You see.** The first step works, but the second forward pass raises an error on every rank:
#
# ```text
# RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one. This error indicates that
# your module has parameters that were not used in producing loss. You can enable unused parameter detection by passing the
# keyword argument `find_unused_parameters=True` to `torch.nn.parallel.DistributedDataParallel`, and by making sure all `forward`
# function outputs participate in calculating loss. ... Parameter indices which did not receive grad for rank 0: 2 3
# ```


# %%
class TwoHeads(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used = torch.nn.Linear(1, 1)
        self.unused = torch.nn.Linear(1, 1)

    def forward(self, x):
        return self.used(x)


@mistake("raises an error", ranks=2)
def two_steps_with_ddp(rank, world_size, device):
    model = DistributedDataParallel(TwoHeads().to(device))
    x = torch.tensor([[10.0**rank]], device=device)
    for _step in range(2):
        model.zero_grad()
        model(x).sum().backward()
    check(model.module.used.weight.grad, torch.tensor([[5.5]]), "the averaged gradient")


# %%
if __name__ == "__main__":
    run(two_steps_with_ddp, folded=True)

# %% [markdown]
# <details><summary>What is wrong?</summary>
#
# **Cause: an unused parameter.** DDP reduces the gradients in buckets, and waits until each bucket
# is full. The parameters 2 and 3, weight and bias of the second head, get no gradient, so their
# bucket is never full and never reduced. DDP notices this only in the next forward pass, which is
# why the first step works.
#
# **Cure.** With `find_unused_parameters=True`, DDP searches for unused parameters in each step,
# which costs time. It is better to remove the parameters, or to use them in the loss.
#
# **Early.** Train two steps, not one, before you start the long run. `TORCH_DISTRIBUTED_DEBUG=INFO`
# adds the names:
#
# ```text
# Parameters which did not receive grad for rank 0: unused.bias, unused.weight
# ```
#
# (Do not take `DETAIL` here: with it, torch 2.13 on the CPU dies by SIGSEGV as soon as it makes a
# DDP model, even a correct one.)
#
# </details>


# %%
@cure(ranks=2)
def find_unused_parameters(rank, world_size, device):
    model = DistributedDataParallel(TwoHeads().to(device), find_unused_parameters=True)
    x = torch.tensor([[10.0**rank]], device=device)
    for _step in range(2):
        model.zero_grad()
        model(x).sum().backward()
    check(model.module.used.weight.grad, torch.tensor([[5.5]]), "the averaged gradient")
    return {"gradient": model.module.used.weight.grad}


# %%
if __name__ == "__main__":
    run(find_unused_parameters, folded=True)

# %% [markdown]
# ## Program 4: a checkpoint is loaded
#
# **You see.** A checkpoint of a DDP model cannot be loaded into the same model without DDP:
#
# ```text
# RuntimeError: Error(s) in loading state_dict for Linear:
#     Missing key(s) in state_dict: "weight", "bias".
#     Unexpected key(s) in state_dict: "module.weight", "module.bias".
# ```


# %%
@mistake("raises an error", ranks=2)
def load_a_checkpoint(rank, world_size, device):
    model = DistributedDataParallel(torch.nn.Linear(2, 1, device=device))
    checkpoint = [model.state_dict()]
    dist.broadcast_object_list(checkpoint, src=0)
    loaded = torch.nn.Linear(2, 1, device=device)
    loaded.load_state_dict(checkpoint[0])
    check(loaded.weight.data, model.module.weight.data, "load_state_dict")


# %%
if __name__ == "__main__":
    run(load_a_checkpoint, folded=True)

# %% [markdown]
# <details><summary>What is wrong?</summary>
#
# **Cause: `module.` in the keys.** Many programs save `model.state_dict()` as if it were that of
# the bare model. But DDP is a module that holds your model under the name `module`, so the names of
# all its parameters begin with this name.
#
# **Cure.** Save `model.module.state_dict()`. Load it before you wrap the model in DDP, or into
# `model.module`.
#
# **Early.** Load the first checkpoint once on one process, without DDP. But do not pass
# `strict=False`: then nothing is loaded, and there is no error.
#
# </details>


# %%
@cure(ranks=2)
def state_of_the_module(rank, world_size, device):
    model = DistributedDataParallel(torch.nn.Linear(2, 1, device=device))
    checkpoint = [model.module.state_dict()]
    dist.broadcast_object_list(checkpoint, src=0)
    loaded = torch.nn.Linear(2, 1, device=device)
    loaded.load_state_dict(checkpoint[0])
    check(loaded.weight.data, model.module.weight.data, "load_state_dict")
    return {"keys": list(checkpoint[0])}


# %%
if __name__ == "__main__":
    run(state_of_the_module, folded=True)

# %% [markdown]
# ## Program 5: batch norm
#
# **You see.** There is no error. The parameters of all ranks are equal, and yet the ranks disagree
# when they validate.


# %%
@mistake("wrong numbers", ranks=2)
def train_with_batch_norm(rank, world_size, device):
    norm = torch.nn.BatchNorm1d(1, momentum=None, device=device)
    x = torch.tensor([[0.0], [2.0]], device=device) + 10 * rank
    norm(x)  # the forward pass; all ranks apply the same gradients afterwards
    check(norm.running_mean, torch.tensor([6.0]), "mean of all samples")


# %%
if __name__ == "__main__":
    run(train_with_batch_norm, folded=True)

# %% [markdown]
# <details><summary>What is wrong?</summary>
#
# **Cause: the batch norm of one rank.** The mean and variance that batch norm keeps for validation
# are buffers, not parameters. They have no gradient, so nobody reduces them: rank 0 knows only its
# own samples, with the mean 1, and rank 1 those with the mean 11. (DDP copies the buffers of rank 0
# to all ranks in each forward pass. Then the ranks agree, but on the statistics of rank 0.)
#
# **Cure.** Average the buffers before you validate, as here. But the average of the variances is
# still not the variance of all samples. For that, `SyncBatchNorm` normalizes over the batches of
# all ranks. It needs a GPU (`torch/nn/modules/batchnorm.py`: "SyncBatchNorm expected input tensor
# to be on GPU").
#
# **Early.** Compare the buffers of all ranks, too, and not the parameters alone. Layer norm has no
# such buffers.
#
# </details>


# %%
@cure(ranks=2)
def averaged_batch_norm(rank, world_size, device):
    norm = torch.nn.BatchNorm1d(1, momentum=None, device=device)
    x = torch.tensor([[0.0], [2.0]], device=device) + 10 * rank
    norm(x)
    dist.all_reduce(norm.running_mean)
    norm.running_mean /= world_size
    check(norm.running_mean, torch.tensor([6.0]), "mean of all samples")
    return {"running mean": norm.running_mean}


# %%
if __name__ == "__main__":
    run(averaged_batch_norm, folded=True)

# %% [markdown]
# ## Program 6: a checkpoint is saved
#
# **You see.** Most checkpoints are right, but one day one of them cannot be loaded:
#
# ```text
# RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory
# ```


# %%
@contextmanager
def shared_folder(rank):
    """A folder that all ranks can read and write, like a shared disk."""
    with TemporaryDirectory() if rank == 0 else nullcontext() as folder:
        shared = [folder]
        dist.broadcast_object_list(shared, src=0)
        yield Path(shared[0])
        dist.barrier()  # all have finished


@mistake("raises an error", ranks=2)
def save_a_checkpoint(rank, world_size, device):
    weights = torch.arange(1000.0, device=device)
    with shared_folder(rank) as folder:
        path = folder / "last.pt"
        if rank == 0:
            with span("write"):
                torch.save(weights, path)
        dist.barrier()
        # It saves the same file, a little later, and has written 2000 bytes of it so far.
        if rank == 1:
            with span("write half"):
                path.write_bytes(path.read_bytes()[:2000])
        dist.barrier()
        if rank == 0:
            with span("read"):
                check(torch.load(path), weights, "torch.load")


# %%
if __name__ == "__main__":
    run(save_a_checkpoint, folded=True)

# %% [markdown]
# <details><summary>What is wrong?</summary>
#
# **Cause: every rank writes the checkpoint.** Every rank opens the same file for writing, which
# empties it. So rank 0, which has finished, reads the file while rank 1 is still writing. (The
# barriers make sure that this happens here. In a real program it is a matter of luck.) A job that
# is killed while it saves leaves the same half file.
#
# **Cure.** Let one rank write, under another name, and rename the file when it is complete. A
# barrier makes the other ranks wait until the file is there.
#
# **Early.** Ask of every line that writes: how many ranks run it? On several machines with one
# shared disk, test for rank 0, not for local rank 0. But if each rank has a part of the model
# (FSDP), all ranks must take part in saving.
#
# </details>


# %%
@cure(ranks=2)
def rank_0_saves(rank, world_size, device):
    weights = torch.arange(1000.0, device=device)
    with shared_folder(rank) as folder:
        path = folder / "last.pt"
        if rank == 0:
            with span("write"):
                torch.save(weights, folder / "next.pt")
                os.replace(folder / "next.pt", path)
        dist.barrier()  # the file is there
        with span("read"):
            loaded = torch.load(path)
        check(loaded, weights, "torch.load")
    return {"numbers loaded": len(loaded)}


# %%
if __name__ == "__main__":
    run(rank_0_saves, folded=True)

# %% [markdown]
# These programs had at least started. Next lesson:
# [start_up](../../notebooks/mistakes/start_up.ipynb), in which the ranks do not even find each
# other.

# %%
STEPS = [
    validate_between_epochs,
    every_rank_validates,
    gradients_of_micro_batches,
    step_after_the_last_one_too,
    two_steps_with_ddp,
    find_unused_parameters,
    load_a_checkpoint,
    state_of_the_module,
    train_with_batch_norm,
    averaged_batch_norm,
    save_a_checkpoint,
    rank_0_saves,
]
