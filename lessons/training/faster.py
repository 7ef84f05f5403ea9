# %% [markdown]
"""
# faster: do more GPUs train faster? Speedup and efficiency

Whether more ranks train faster depends on how long a step computes, and how long it sends.

You train on one GPU, and somebody offers you a second one. Will an epoch take half as long? At the
end of this lesson you can answer that before you have it, from three numbers, and you know what to
change if the answer is no.

    python lessons/training/faster.py
    torchrun --nproc-per-node 4 lessons/training/faster.py
"""

# %%
from contextlib import nullcontext
from collectives import check, computed, counting, digits, looked_up, run
from profile_lanes import ProfileLanes
from one_process import batch_loss, network, shuffled
import speed
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector

# %% [markdown]
# ## The idea
#
# More ranks divide the computing, but not the sending. A step of n ranks with a batch of B images
# takes about
#
# > B / n * c + 2 (n - 1) / n * S / bandwidth
#
# seconds. c is the time that one rank needs for one image, and S the bytes of all gradients. The
# first part shrinks with n. The second does not: each rank sends nearly 2 S bytes, however many
# ranks there are, because each needs the sum of all gradients.
#
# So a small network is slower on two ranks. Of [train_ddp.py](../../examples/train_ddp.py), an
# epoch took 0.04 s on one rank and 0.07 s on two idle cores of a cloud machine, with one thread for
# each rank (`python benchmarks/seconds_per_epoch.py`): computing its 24 steps takes less time than
# their calls do.

# %% [markdown]
# ## Predicted and measured
#
# `speed.py` beside this lesson trains a network with S = 3.3 MB of gradients, in float32 and with
# DDP. We measured three of its steps: one with 256 images, one with 256 images and gradients in
# float16, and one with 2,048 images, on one rank and on two. The two have one core each, and a
# cable of 500 or of 50 Mbit/s between them. For the formula we use only c, S and the bandwidth, so
# it is a prediction.

# %% [markdown]
# **Predict first.** One rank computes about 15,800 images in a second. In which of the three steps
# are two ranks faster than that over 500 Mbit/s, and in which over 50 Mbit/s?


# %%
def step_time(n, batch, nbytes, bandwidth):
    """Seconds, by the formula."""
    one_image = speed.measured()["seconds"]["1 rank here"]["2048 images"] / 2048
    return batch / n * one_image + 2 * (n - 1) / n * nbytes / bandwidth


def gradients():
    return 4 * sum(parameter.numel() for parameter in speed.network().parameters())


@looked_up
def predicted_and_measured(rank, world_size, device):
    steps = [(256, gradients()), (256, gradients() / 2), (2048, gradients())]
    found = {}
    for cable, mbits in (("500 Mbit/s", 500), ("50 Mbit/s", 50)):
        predicted = [batch / step_time(2, batch, size, mbits * 1e6 / 8) for batch, size in steps]
        seconds = speed.measured()["seconds"][cable].values()
        measured = [batch / one for (batch, _), one in zip(steps, seconds, strict=True)]
        ratios = [one / other for one, other in zip(predicted, measured, strict=True)]
        check([0.8 < ratio < 1.25 for ratio in ratios], [True] * 3, f"{cable}: {ratios}")
        found[f"{cable}, predicted"] = list(map(round, predicted))
        found[f"{cable}, measured"] = list(map(round, measured))
    return found


# %%
if __name__ == "__main__":
    run(predicted_and_measured, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Only in the third, and only over the faster cable: 20750 / 15802 = 1.31 times as fast.
#
# </details>
#
# In all six cases the formula is right to within a fifth. It is worst in the step in which the
# second rank pays, which is faster than predicted. To see why, look into a step.

# %% [markdown]
# ### Where the time of a step goes
#
# The torch profiler notes when each layer is computed, and when gloo's threads reduce a bucket. A
# rank waits while it computes nothing. These are the first and the third step, over 500 Mbit/s.

# %% [markdown]
# **Predict first.** With 256 images, does the rank compute or wait for the longer part of the step?


# %%
@looked_up
def where_the_time_goes(rank, world_size, device):
    steps = speed.measured()["500 Mbit/s"]
    waits = [speed.waiting(ranks[0]) for ranks in steps.values()]
    check([waits[0] > 0.5, waits[1] < 0.5], [True, True], "rank 0 waits for more than half a step")
    shown = {step: f"{share:.0%}" for step, share in zip(steps, waits, strict=True)}
    lanes = {f"{step}, 2 ranks on 2 cores": ranks for step, ranks in steps.items()}
    return {"over 500 Mbit/s": ProfileLanes(lanes)} | shown


# %%
if __name__ == "__main__":
    run(where_the_time_goes, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# It waits, 81% of the step.
#
# </details>
#
# With 2,048 images the rank waits only 22%, because the buckets of the last layers are on their way
# while `backward()` computes the first ones. The formula adds the two times, as if nothing
# [overlapped](../../notebooks/training/buckets.ipynb), which is why this step beats it.

# %% [markdown]
# ### Send fewer bytes for each image
#
# If the rank waits, give it more to compute for each byte that it sends. There are three ways: a
# larger batch; gradients in float16, by a communication hook of torch; and
# [micro-batches](../../notebooks/route/micro_batches.ipynb).

# %% [markdown]
# **Predict first.** A small batch; the same with float16 in place of float64; a batch that is eight
# times as large, at once or in parts. Which of the four sends the most bytes for each image? Of
# those that send the fewest, which needs the least memory for activations?


# %%
def one_step(images_of_a_rank, limit, device, parts=1, hook=default_hooks.allreduce_hook):
    rank, n = dist.get_rank(), dist.get_world_size()
    images, labels = digits(device)
    model = DistributedDataParallel(network(0, device))
    model.register_comm_hook(None, hook)
    batch = shuffled()[: images_of_a_rank * n]
    mine = batch[rank::n]
    with counting() as counts:
        for number in range(parts):
            with nullcontext() if number == parts - 1 else model.no_sync():
                part = mine[number::parts]
                batch_loss(model, images[part], labels[part])

    batch_loss(alone := network(0, device), images[batch], labels[batch])
    gradients = [[parameter.grad for parameter in one.parameters()] for one in (model, alone)]
    found, expected = map(parameters_to_vector, gradients)
    error = ((found / parts - expected).norm() / expected.norm()).item()
    check(error < limit, True, f"relative error {error:.1g}")
    return counts["c10d.all_reduce"].bytes / len(mine)


def bytes_for_each_image(rank, world_size, device):
    found = {
        "16 images": one_step(16, 1e-9, device),
        "float16": one_step(16, 1e-3, device, hook=default_hooks.fp16_compress_hook),
        "128 images": one_step(128, 1e-9, device),
        "128 in 8 parts": one_step(128, 1e-9, device, parts=8),
    }
    whole = 2410 * 8 / 16  # 2,410 parameters in float64, 16 images on each rank
    check(list(found.values()), [whole, whole / 4, whole / 8, whole / 8], "bytes for each image")
    return found


# %%
if __name__ == "__main__":
    run(bytes_for_each_image, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 1205.0 bytes for each image is the most, with the small batch. float16 sends a quarter of that,
# and rounds the gradients. The large batch sends an eighth, 150.625 bytes, at once or in parts. In
# parts, only the activations of one part are in memory at a time.
#
# </details>
#
# So a large batch is cheap to send. But it is a different training: [fewer
# steps](../../notebooks/training/shards.ipynb) for the same images. How large must it be, then?

# %% [markdown]
# ### From 2 ranks to 16
#
# There are two ways to add ranks. You divide the same 2,048 images among more of them (strong
# scaling), or each rank computes 2,048 images, so that the batch grows with n (weak scaling). The
# formula says how many times as fast as one rank they are over 500 Mbit/s, in this order.

# %% [markdown]
# **Predict first.** Which of the two ways makes 16 ranks three times as fast as one?


# %%
@computed
def scaling(rank, world_size, device):
    where = gradients(), 500e6 / 8
    one_rank = step_time(1, 2048, *where)
    found = {}
    for n in (2, 4, 8, 16):
        times = one_rank / step_time(n, 2048, *where), n * one_rank / step_time(n, n * 2048, *where)
        found[f"{n} ranks"] = [round(one, 2) for one in times]
    check([one > 3 for one in found["16 ranks"]], [False, True], "three times as fast")
    check([one > 3 for one in found["4 ranks"]], [False, False], "4 ranks, three times as fast")
    return found


# %%
if __name__ == "__main__":
    run(scaling, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Only the second. If the batch grows, four ranks are 2.48 times as fast as one, and 16 ranks 9.06
# times. "DDP with four GPUs is three times as fast" is true of some network and some cable. With
# the same batch, 16 ranks reach 1.21 times, hardly more than the 1.1 of two: the sending is soon
# nearly all of the step, and no rank that you add makes it shorter.
#
# </details>

# %%
STEPS = [predicted_and_measured, where_the_time_goes, bytes_for_each_image, scaling]

# %% [markdown]
# ## The proof
#
# `bytes_for_each_image` compares gradients with one process, and the bytes, counted below DDP, with
# a formula. The times were measured once, by `python benchmarks/training_speed.py`, and the formula
# is compared with them.

# %% [markdown]
# ## Make it wrong
#
# Make one change, run the steps, read what the proof says, and undo it.
#
# 1. **Every part is reduced.** In `one_step`, change `number == parts - 1` to `True`. It says `got
#    [1205.0, 301.25, 150.625, 1205.0]`. The gradient is right, but nothing is saved.
# 2. **The parts overlap.** In `one_step`, change `mine[number::parts]` to `mine[number:]`. It says
#    `got False, should be True [relative error 0.04`. Some images count several times.

# %% [markdown]
# ## Pitfalls
#
# - Compare images per second: n ranks with a batch each do n times the work in a step.
# - Time a step after the first ones. They connect the ranks and build DDP's buckets.
# - The formula ignores that gloo's threads need cores, too. Without a slow cable, as on one
#   machine, it promises far too much.
# - On a GPU, a call returns before its work is done: call `torch.cuda.synchronize()` before you
#   read the clock ([CUDA semantics](https://docs.pytorch.org/docs/stable/notes/cuda.html)).

# %% [markdown]
# ## Read on
#
# Up to here every rank loaded the whole batch and used a part of it. Next lesson:
# [sampler](../../notebooks/training/sampler.ipynb), with which each rank loads only its own images.
