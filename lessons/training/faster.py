# %% [markdown]
"""
# faster

Two ranks compute a step in half the time, and then they send gradients. Whether the training
becomes faster depends on which of the two takes longer.

You will see what a step sends for each image, how fast one and two ranks were over two cables,
where the time of a step goes, and a formula for it.

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
# "Four GPUs train three times as fast" is a rule of thumb. A step of n ranks with a batch of B
# images takes about
#
# > B / n * c + 2 (n - 1) / n * S / bandwidth
#
# seconds. c is the time of one image, and S the bytes of all gradients. The second part does not
# shrink with n: each rank sends nearly 2 S bytes. To become faster, send fewer bytes for each
# image, or [hide](../../notebooks/training/buckets.ipynb) the sending behind computing.

# %% [markdown]
# ## The code
#
# ### Bytes for each image
#
# Three ways send fewer bytes for each image: a larger batch; gradients as float16, which a
# communication hook of torch makes; and accumulation, where all parts of a batch but the last run
# under `no_sync()`. All of them have to give the gradient of one process.

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
    run(bytes_for_each_image)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 1205.0 bytes for each image is the most, with the small batch. float16 has a quarter of the bytes
# of float64, and gradients that are rounded. The large batch sends an eighth, 150.625 bytes, in one
# part or in several. In several, the activations of one part are in memory at a time. But
# [a larger batch](../../notebooks/training/shards.ipynb) means fewer steps.
#
# </details>

# %% [markdown]
# ### Was it faster?
#
# These images in a second were measured once, on two cores, by `speed.py` beside this lesson: a
# larger network, in float32, with DDP. The three numbers are those of a step with 256 images, of
# one with 256 images and float16 gradients, and of one with 2,048 images. The two machines of the
# lab share the two cores, so each rank has one core, and only the cable differs.

# %% [markdown]
# **Predict first.** In which steps are two ranks faster than one over 500, and over 50 Mbit/s?


# %%
@looked_up
def images_per_second(rank, world_size, device):
    found = {
        where: [round(int(step.split()[0]) / time) for step, time in steps.items()]
        for where, steps in speed.measured()["seconds"].items()
    }
    alone, *pairs = found.values()
    faster = [[two > one for one, two in zip(alone, pair, strict=True)] for pair in pairs]
    check(faster, [[False, False, True], [False, False, True], [False] * 3], "two ranks are faster")
    return found


# %%
if __name__ == "__main__":
    run(images_per_second)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Over the first cable in the third step, by 20750 / 15802 = 1.31 times; over the second in none.
# Even without a cable, 11130 is fewer than 15706 for 256 images: gloo's threads need the cores on
# which the ranks compute.
#
# </details>

# %% [markdown]
# ### Where the time of a step goes
#
# The torch profiler notes when each layer is computed, and when gloo's threads reduce a bucket. The
# cable has 500 Mbit/s. A rank waits while it computes nothing.

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
    run(where_the_time_goes)

# %% [markdown]
# <details><summary>Answer</summary>
#
# It waits, 81% of the step. With 2,048 images it waits 22%: the buckets of the last layers are on
# their way while `backward()` computes the first ones.
#
# </details>

# %% [markdown]
# ### The formula
#
# The formula adds sending to computing, as if nothing overlapped. We put in the time of one rank,
# and the bandwidth of the cable. "3 times" is the batch with which four ranks are three times as
# fast as one.

# %% [markdown]
# **Predict first.** "Four GPUs train three times as fast": is that true over 500 Mbit/s, or over 50
# Mbit/s?


# %%
@computed
def formula(rank, world_size, device):
    def seconds(n, batch, nbytes, bandwidth):
        return batch / n * one_image + 2 * (n - 1) / n * nbytes / bandwidth

    one_image = speed.measured()["seconds"]["1 rank here"]["2048 images"] / 2048
    gradients = 4 * sum(parameter.numel() for parameter in speed.network().parameters())
    found = {}
    for cable in ("500 Mbit/s", "50 Mbit/s"):
        bandwidth = int(cable.split()[0]) * 1e6 / 8  # bytes per second
        batches = [(256, gradients), (256, gradients / 2), (2048, gradients)]
        found[cable] = [round(one[0] / seconds(2, *one, bandwidth)) for one in batches]

        batch = 18 * gradients / bandwidth / one_image
        times = batch * one_image / seconds(4, batch, gradients, bandwidth)
        check(round(times, 9), 3.0, f"as fast as one rank, {cable}")
        found[f"3 times, {cable}"] = round(batch)
    return found


# %%
if __name__ == "__main__":
    run(formula)

# %% [markdown]
# <details><summary>Answer</summary>
#
# It depends on the batch: 15044 images in a step over 500 Mbit/s, and ten times as many, 150438,
# over 50 Mbit/s. For the last step of the first column it predicts 17402 images per second. The
# measured step was faster: its buckets overlapped.
#
# </details>

# %%
STEPS = [bytes_for_each_image, images_per_second, where_the_time_goes, formula]

# %% [markdown]
# ## The proof
#
# `bytes_for_each_image` compares gradients with one process, and the bytes, counted below DDP, with
# a formula. The others show what `python benchmarks/training_speed.py` measured once.

# %% [markdown]
# ## Make it wrong
#
# Predict what goes wrong. Make one change, run the steps, read what the proof says, and undo it.
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
# - On a GPU, a call returns before its work is done: call `torch.cuda.synchronize()` before you
#   read the clock ([CUDA semantics](https://docs.pytorch.org/docs/stable/notes/cuda.html)).

# %% [markdown]
# ## Read on
#
# - The lesson [cables](../../notebooks/machines/cables.ipynb) counts the bytes on a cable.
# - [The torch profiler](https://docs.pytorch.org/docs/stable/profiler.html) writes traces.
#
# Next lesson: [sampler](../../notebooks/training/sampler.ipynb), which gives each rank its images.
