# %% [markdown]
"""
# buckets

The gradients are averaged in buckets, and the first bucket is on its way while `backward()`
computes the rest.

You will see a hook on each parameter, buckets in reverse order, the order of events in a step, and
how the size of the buckets decides the number of calls.

    python lessons/training/buckets.py
    torchrun --nproc-per-node 4 lessons/training/buckets.py
"""

# %%
from functools import partial
from collectives import check, check_training, counting, digits, run
from one_process import batch_loss, network, shuffled, train
import time
import torch.distributed as dist
from torch.nn.utils import parameters_to_vector, vector_to_parameters

# %% [markdown]
# ## The idea
#
# [data_parallel](../../notebooks/training/data_parallel.ipynb) has two faults. It calls
# `all_reduce` once for each parameter, and every call has a cost of its own, however small the
# tensor is. And it begins only when `backward()` has ended: first nothing is sent, and then nothing
# is computed.
#
# Buckets cure both:
#
# 1. **Fewer calls.** Gradients are copied into one long tensor, a bucket, and reduced together.
# 2. **In reverse order.** `backward()` begins with the last layer. So the first bucket holds the
#    last parameters, and it is full first.
# 3. **Asynchronous.** A hook on each parameter notices that its gradient is there. When a bucket is
#    full, `all_reduce` starts and returns immediately, and `backward()` goes on with the other
#    layers.
#
# After `backward()`, each rank waits for the buckets and copies the averages back.

# %% [markdown]
# ## The code
#
# ### Buckets
#
# `with_buckets` goes from the last parameter to the first, and begins another bucket when one holds
# `limit` bytes. PyTorch calls the hook of a parameter when its gradient is complete. The last
# gradient of a bucket starts the `all_reduce` of the whole bucket. `async_op=True` returns
# immediately, with a `Work` to wait for.


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
# When `backward()` has returned, all buckets have been started. The rank waits for each of them,
# divides, and copies the averages back into the gradients.


# %%
def average_in_buckets(started, model, images, labels):
    rank, n = dist.get_rank(), dist.get_world_size()
    started.clear()
    loss = batch_loss(model, images[rank::n], labels[rank::n])
    for bucket, flat, work in started:
        work.wait()
        vector_to_parameters(flat / n, [one.grad for one in bucket])
    return loss


# %%
def buckets(rank, world_size, device):
    model, started = with_buckets(network(0, device), limit=1000)
    batches = shuffled().split(64 // world_size * world_size)[:-1]
    trained, losses = train(model, partial(average_in_buckets, started), batches, device)

    expected, _ = train(network(0, device), batch_loss, batches, device)
    check_training(trained, expected, "buckets")
    return {"loss": losses, "bytes of each call": [flat.nbytes for _, flat, _ in started]}


# %% [markdown]
# **Predict first.** The last layer has a bias of 10 numbers and a weight of 320, the first one 32
# and 2,048, of 8 bytes each. A bucket is full from 1,000 bytes on. Which layer is in the first
# bucket, and is this the larger bucket?

# %%
if __name__ == "__main__":
    run(buckets)

# %% [markdown]
# <details><summary>Answer</summary>
#
# The last layer, and it is the smaller bucket: 2640 bytes against 16640. The training calls
# `all_reduce` twice in a step, and data_parallel four times. The sums are the same, and so are the
# losses in the picture.
#
# </details>

# %% [markdown]
# ### The order of events
#
# One step is enough to see the order. Its batch is the whole data set. The gradient of the first
# weight, `model[0].weight`, comes last. At that moment a hook checks how many buckets have been
# started. Then it keeps `backward()` waiting until the first bucket has been reduced, for at most
# 20 seconds. Nobody has called `wait()` yet.


# %%
def order_of_events(rank, world_size, device):
    def before_the_last_gradient(_):
        check(len(started), 1, "before the last gradient")
        end = time.monotonic() + 20
        while not started[0][2].is_completed() and time.monotonic() < end:
            time.sleep(0.001)
        reduced.extend(work.is_completed() for _, _, work in started)
        check(reduced, [True], "reduced during backward()")

    reduced = []
    model, started = with_buckets(network(0, device), limit=1000)
    model[0].weight.register_hook(before_the_last_gradient)
    average_in_buckets(started, model, *digits(device))
    return {"reduced before the last gradient": sum(reduced), "in all": len(started)}


# %% [markdown]
# **Predict first.** How many of the two buckets have been started when the last gradient is
# computed? Can they be reduced before `backward()` has ended?

# %%
if __name__ == "__main__":
    run(order_of_events)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 1, and it is reduced while `backward()` is still under way: another thread does the work. The
# picture shows the order of the calls: each rank starts both buckets before it waits for the first
# one.
#
# </details>

# %% [markdown]
# ### The size of a bucket
#
# Small buckets start earlier, and large ones need fewer calls. The model is the same. The table
# shows the bytes of each call of a step.


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


# %% [markdown]
# **Predict first.** With which of these limits does nothing overlap with `backward()`?

# %%
if __name__ == "__main__":
    run(calls_and_bytes)

# %% [markdown]
# <details><summary>Answer</summary>
#
# With the largest: all 19280 bytes go in one call, which starts after the last gradient. Smaller
# limits give more calls, and the same bytes in all: the last call holds 16384 bytes or more, and it
# never overlaps.
#
# </details>

# %%
STEPS = [buckets, order_of_events, calls_and_bytes]

# %% [markdown]
# ## The proof
#
# `check_training` compares `buckets` with one process, on every rank. `order_of_events` proves an
# order, not a time. In `calls_and_bytes`, `counting` counts below the lesson, in the process group.
#
# How much time is gained depends on the machine. With four ranks on two cores and no network, the
# cores that compute are also those that communicate, and the gain is too small to measure. It can
# be seen on a slow network. Save this as `overlap.py`:
#
# ```python
# import time
# import torch
# import torch.distributed as dist
# from torch import nn
# from torch.nn.parallel import DistributedDataParallel as DDP
#
#
# def seconds_of_a_step(bucket_cap_mb):
#     layers = [nn.Linear(512, 512) for _ in range(8)]  # 1 MiB each
#     for layer in layers:  # as if it took 0.1 s to compute its gradient
#         layer.register_full_backward_pre_hook(lambda *_: time.sleep(0.1))
#     model, times = DDP(nn.Sequential(*layers), bucket_cap_mb=bucket_cap_mb), []
#     for _ in range(5):
#         start = time.perf_counter()
#         model(torch.ones(1, 512)).sum().backward()
#         times.append(time.perf_counter() - start)
#     return sorted(times)[2]
#
#
# dist.init_process_group("gloo")
# several, one = seconds_of_a_step(1), seconds_of_a_step(100)
# if dist.get_rank() == 0:
#     print(f"with one bucket, a step takes {one / several:.1f} times as long as with eight")
# dist.barrier()
# dist.destroy_process_group()
# ```
#
# On Linux, the command `collectives lab 2` makes two machines out of one, and each has a cable of
# 50 megabits per second. DDP has one bucket for each layer, and then one for all of them:
#
# ```console
# $ collectives lab 2 --rate 50mbit -- torchrun --nnodes 2 --node-rank {node} \
#     --master-addr node0 overlap.py
# node0: with one bucket, a step takes 1.6 times as long as with eight
# ```
#
# `backward()` takes 0.8 s, and the cable is busy for longer than that. With eight buckets, both
# happen at the same time.

# %% [markdown]
# ## Make it wrong
#
# Each of these is one change. Predict what goes wrong. Then make it, run the steps, read what the
# proof says, and undo it.
#
# 1. **The sum for the mean.** In `average_in_buckets`, change `flat / n` to `flat`.
#
#    <details><summary>Answer</summary>
#
#    It says `rank 0/4: 0.bias.momentum_buffer: relative error 5`.
#
#    </details>
#
# 2. **Nothing is copied back.** In `average_in_buckets`, change `vector_to_parameters(flat / n,
#    [one.grad for one in bucket])` to `pass`.
#
#    <details><summary>Answer</summary>
#
#    It says `rank 1/4: 2.bias.momentum_buffer: relative error 2`. The buckets are reduced, and
#    nobody uses them.
#
#    </details>
#
# 3. **The last bucket is forgotten.** In `average_in_buckets`, change `in started:` to `in
#    started[:-1]:`.
#
#    <details><summary>Answer</summary>
#
#    It says `rank 1/4: 0.bias.momentum_buffer: relative error 2`.
#
#    </details>
#
# 4. **A bucket for each parameter.** In `with_buckets`, change `bucket=bucket,` to
#    `bucket=[parameter],`.
#
#    <details><summary>Answer</summary>
#
#    It says `got 3, should be 1 [before the last gradient`. The training is right, but it makes 4
#    calls.
#
#    </details>
#
# 5. **One bucket for all.** In `order_of_events`, change `limit=1000` to `limit=25 * 2**20`.
#
#    <details><summary>Answer</summary>
#
#    It says `got 0, should be 1 [before the last gradient`. The training is right, but the only
#    `all_reduce` starts after the last gradient.
#
#    </details>

# %% [markdown]
# ## Pitfalls
#
# - Do not read or change a bucket between `all_reduce(async_op=True)` and `wait()`. The mistake is
#   shown in [buffers](../../notebooks/mistakes/buffers.ipynb).
# - All ranks must start the buckets in the same order. If the ranks run different parts of a model,
#   gradients come in another order, and the buckets of one rank meet others of another rank. DDP
#   starts its buckets in their order only, even if a later one is full earlier.
# - A parameter that the loss does not use gets no gradient. Its bucket is never full, and here no
#   error says so. DDP raises one in the next step.
# - With gradient accumulation, `.grad` is there before `backward()` begins. The test in `start`
#   then starts a bucket too early; DDP counts the gradients of each step instead.
# - Small buckets start earlier, large ones need fewer calls. The last bucket never overlaps with
#   `backward()`, because the last gradient is in it.

# %% [markdown]
# ## Read on
#
# - S. Li and others, [*PyTorch Distributed*](https://arxiv.org/abs/2006.15704) (2020): how the
#   bucket size changes the speed of DDP, on several machines.
# - The lesson [isend_irecv](../../notebooks/isend_irecv.ipynb): calls that return a `Work`.
#
# In PyTorch's documentation:
#
# - [`all_reduce`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_reduce)
# - [`barrier`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.barrier)
# - [`get_rank`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.get_rank)
# - [`get_world_size`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.get_world_size)
# - [`init_process_group`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.init_process_group)
#
# Next lesson: [faster](../../notebooks/training/faster.ipynb), which asks when more ranks are
# faster.
