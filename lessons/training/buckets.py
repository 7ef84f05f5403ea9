# %% [markdown]
"""
# buckets: DDP groups gradients into buckets, and overlaps them with backward

DDP reduces gradients in buckets, and the first bucket is on its way while `backward()` computes the
rest.

[wrapped_in_ddp](../../notebooks/route/wrapped_in_ddp.ipynb) says that DDP sends while `backward()`
computes. At the end of this lesson you have built what it does inside, seen which bucket starts
when, and know what the size of a bucket changes.

    python lessons/training/buckets.py
    torchrun --nproc-per-node 4 lessons/training/buckets.py
"""

# %%
from functools import partial
from collectives import check, check_samples, check_training, counting, digits, run
from bucket_order import BucketOrder
from one_process import batch_loss, network, shuffled, train
import time
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from collectives.semantics.late_peer import LatePeer

# %% [markdown]
# ## The idea
#
# A loop that reduces each gradient after `backward()` wastes time twice: every call has a cost of
# its own, however small the tensor is, and meanwhile nothing is computed. Buckets help against
# both:
#
# 1. **Fewer calls.** Gradients are copied into one long tensor, a bucket, and reduced together.
# 2. **In reverse order.** `backward()` begins with the last layer, so the first bucket holds the
#    last parameters, because their gradients are complete first.
# 3. **Asynchronous.** When a bucket is full, `all_reduce` starts and returns immediately, and
#    `backward()` goes on with the other layers.
#
# After `backward()`, each rank waits for the buckets and copies the averages back.
#
# ![The first bucket travels while backward still computes the gradients of the first two
# layers](../../docs/ideas/buckets.svg)
#
# From left to right is the order of events, and a bar goes from the start of a bucket to its
# `wait()`. The first bucket holds the gradients of layers 4 and 3, so it travels while `backward()`
# computes those of layers 2 and 1.

# %% [markdown]
# ## The code
#
# ### Buckets
#
# `with_buckets` goes from the last parameter to the first, and begins another bucket when one holds
# `limit` bytes. PyTorch calls the hook of a parameter as soon as its gradient is complete, and the
# hook of the last one in a bucket starts the `all_reduce` of the whole bucket. `async_op=True`
# returns immediately, with a `Work` to wait for.


# %%
def start(parameter, bucket, started):
    if all(one.grad is not None for one in bucket):
        flat = parameters_to_vector([one.grad for one in bucket])
        started.append((bucket, flat, dist.all_reduce(flat, async_op=True)))


def with_buckets(model, limit):
    bucket, started = [], []
    for parameter in reversed(list(model.parameters())):
        bucket = [] if sum(one.nbytes for one in bucket) >= limit else bucket
        bucket.append(parameter)
        parameter.register_post_accumulate_grad_hook(partial(start, bucket=bucket, started=started))
    return model, started


# %% [markdown]
# **Predict first.** The last layer has a bias of 10 numbers and a weight of 320, the first one 32
# and 2,048, of 8 bytes each. A bucket is full from 1,000 bytes on. Which layer is in the first
# bucket, and is this the larger bucket?


# %%
def average_in_buckets(started, model, images, labels):
    rank, n = dist.get_rank(), dist.get_world_size()
    started.clear()
    loss = batch_loss(model, images[rank::n], labels[rank::n])
    for bucket, flat, work in started:
        work.wait()
        vector_to_parameters(flat / n, [one.grad for one in bucket])
    return loss


def buckets(rank, world_size, device):
    model, started = with_buckets(network(0, device), limit=1000)
    batches = shuffled().split(64 // world_size * world_size)[:-1]
    trained, _ = train(model, partial(average_in_buckets, started), batches, device)

    expected, _ = train(network(0, device), batch_loss, batches, device)
    check_training(trained, expected, "buckets")
    check_samples(trained, expected, "buckets")
    return {"bytes of each call": [flat.nbytes for _, flat, _ in started]}


# %%
if __name__ == "__main__":
    run(buckets, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# The last layer, and it is the smaller bucket: 2640 bytes against 16640. So each step calls
# `all_reduce` twice, in place of four times.
#
# </details>

# %% [markdown]
# ### The order of events
#
# Two buckets mean fewer calls. Do they also overlap with `backward()`? One step shows it. A hook on
# each parameter notes how many buckets have been started. Another, at the gradient that comes last,
# keeps `backward()` waiting until the first bucket has been reduced, although `wait()` has not been
# called yet. And rank 0 is late on purpose: it starts its first bucket only when all other ranks
# have come to this hook.

# %% [markdown]
# **Predict first.** How many of the two buckets have been started when the last gradient is
# computed? Can they be reduced before `backward()` has ended?


# %%
def order_of_events(rank, world_size, device):
    def before_the_last_gradient(_):
        late.go_on()
        check(len(started), 1, "before the last gradient")
        end = time.monotonic() + 20
        while not started[0][2].is_completed() and time.monotonic() < end:
            time.sleep(0.001)
        reduced.extend(work.is_completed() for _, _, work in started)
        check(reduced, [True], "reduced during backward()")

    def note(name, _):
        seen.append((name, len(started)))

    reduced, seen, late = [], [], LatePeer()
    model, started = with_buckets(network(0, device), limit=1000)
    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(partial(note, name))
    model[0].weight.register_hook(before_the_last_gradient)
    if rank == 0:
        model[2].weight.register_hook(lambda _: late.wait())
    average_in_buckets(started, model, *digits(device))
    check(late.meanwhile, True, "the others go on while rank 0 is late")
    order = BucketOrder({"one step": (seen, [flat.nbytes for _, flat, _ in started])})
    return {"reduced before the last gradient": sum(reduced), "all_reduce": order}


# %%
if __name__ == "__main__":
    run(order_of_events, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 1, and it is reduced while `backward()` goes on, because another thread of the process does the
# work.
#
# </details>

# %% [markdown]
# ### The size of a bucket
#
# Small buckets start earlier, but large ones need fewer calls. The table shows the bytes of each
# call of a step.

# %% [markdown]
# **Predict first.** The parameters take 19,280 bytes in all. A bucket is full from 1, 100 or 1,000
# bytes on, or from 25 MiB on. With which of these limits does nothing overlap with `backward()`?


# %%
def calls_and_bytes(rank, world_size, device):
    batches = shuffled().split(64 // world_size * world_size)[:-1]
    expected, _ = train(network(0, device), batch_loss, batches, device)
    found = {}
    for limit in (1, 100, 1000, 25 * 2**20):
        model, started = with_buckets(network(0, device), limit)
        with counting() as counts:
            trained, _ = train(model, partial(average_in_buckets, started), batches, device)
        check_training(trained, expected, f"limit {limit}")
        steps, (calls, sent) = len(batches), counts["c10d.all_reduce"]
        check([calls, sent], [steps * len(started), steps * 8 * 2410], "calls, and bytes in all")
        found[f"limit {limit}"] = [flat.nbytes for _, flat, _ in started]
    return found


# %%
if __name__ == "__main__":
    run(calls_and_bytes, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# The largest: all 19280 bytes go in one call, which starts after the last gradient. The surprise is
# the last call of each: it holds 16384 bytes or more, and it never overlaps, because the last
# gradient is in it.
#
# </details>

# %% [markdown]
# ### DDP's first bucket is small
#
# "DDP's buckets have 25 MB" is half of it. DDP makes this compromise with two limits: its first
# bucket is full at 1 MiB and all later ones at 25 MiB, so that the first `all_reduce` starts early.
# A communication hook shows them: a function that DDP calls for each full bucket in place of its
# own `all_reduce`. Ours notes the size, and leaves the rest to `allreduce_hook`. The network has
# four layers of 1 MiB each.

# %% [markdown]
# **Predict first.** How many buckets does the second step reduce, and which is larger?


# %%
def first_bucket(rank, world_size, device):
    def note(found, bucket):
        found.append(bucket.buffer().nbytes)
        return allreduce_hook(None, bucket)

    layers = nn.Sequential(*[nn.Linear(512, 512, bias=False) for _ in range(4)])
    model = DistributedDataParallel(layers.to(device))
    model.register_comm_hook(found := [], note)
    for _ in range(2):
        model(torch.ones(1, 512, device=device)).sum().backward()
    first, *second = found
    check([first, sum(second)], [4 * 2**20] * 2, "bytes of each step")
    check(second[0], layers[-1].weight.nbytes, "bytes of the first bucket")
    return {"first step": first, "second step": second}


# %%
if __name__ == "__main__":
    run(first_bucket, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Two: the first has 1048576 bytes, the gradient of the last layer, and the second has 3145728. In
# the first step DDP does not know yet in which order the gradients come, so it puts all of them
# into one bucket of 4194304 bytes, notes their order, and then builds the buckets anew.
#
# </details>

# %%
STEPS = [buckets, order_of_events, calls_and_bytes, first_bucket]

# %% [markdown]
# ## The proof
#
# `check_training` compares `buckets` with one process, on every rank. `order_of_events` proves an
# order and no time: all other ranks compute while rank 0 has not joined.
#
# How much time you gain depends on the network. On Linux, `collectives lab 2` makes two machines
# out of one, here with a cable of 50 megabits per second.
# [overlap.py](../../lessons/training/overlap.py) trains eight layers on them, each of which sleeps
# 0.1 s in `backward()`, first with one bucket for each layer, and then with one for all:
#
# ```console
# $ collectives lab 2 --rate 50mbit -- torchrun --nnodes 2 --node-rank {node} \
#     --master-addr node0 lessons/training/overlap.py
# node0: with one bucket, a step takes 1.6 times as long as with eight
# ```

# %% [markdown]
# ## Make it wrong
#
# Make one change, run the steps, read what the proof says, and undo it.
#
# 1. **The sum for the mean.** In `average_in_buckets`, change `flat / n` to `flat`. It says `rank
#    0/4: 0.bias.momentum_buffer: relative error 5`.
# 2. **Nothing is copied back.** In `average_in_buckets`, change `vector_to_parameters(flat / n,
#    [one.grad for one in bucket])` to `pass`. It says `rank 1/4: 2.bias.momentum_buffer: relative
#    error 2`. The buckets are reduced, and nobody uses them.
# 3. **The last bucket is forgotten.** In `average_in_buckets`, change `in started:` to `in
#    started[:-1]:`. It says `rank 1/4: 0.bias.momentum_buffer: relative error 2`.
# 4. **A bucket for each parameter.** In `with_buckets`, change `bucket=bucket,` to
#    `bucket=[parameter],`. It says `got 3, should be 1 [before the last gradient`. The training is
#    right, but it makes 4 calls.
# 5. **One bucket for all.** In `order_of_events`, change `limit=1000` to `limit=25 * 2**20`. It
#    says `got 0, should be 1 [before the last gradient`.

# %% [markdown]
# ## Write it yourself
#
# In your folder of [exercises](../../README.md#exercises):
#
# ```sh
# collectives practice one_bucket
# ```

# %% [markdown]
# ## Pitfalls
#
# - All ranks must start the buckets in the same order. DDP does, even if a later one is full
#   earlier.
# - With gradient accumulation, `.grad` is there before `backward()` begins, so `start` starts a
#   bucket too early; DDP counts the gradients of each step instead.

# %% [markdown]
# ## Read on
#
# - S. Li and others, [*PyTorch Distributed*](https://arxiv.org/abs/2006.15704) (2020): how the
#   bucket size changes the speed of DDP, on several machines.
#
# Whether that makes more ranks faster depends on how long each takes. Next lesson:
# [faster](../../notebooks/training/faster.ipynb), which measures it.
