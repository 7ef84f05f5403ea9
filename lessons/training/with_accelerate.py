# %% [markdown]
"""
# with_accelerate: what Hugging Face Accelerate does for you

Hugging Face Accelerate wraps a model, its optimizer and its loader, with DDP and a sampler inside.

Your team uses Accelerate, and its loop contains no rank, no sampler and no DDP. You know what has
to happen, but not whether it does. At the end of this lesson you can translate each of its calls,
prove that it trains the same model as DDP with DistributedSampler, and say where it does not fit.

    python lessons/training/with_accelerate.py
    torchrun --nproc-per-node 4 lessons/training/with_accelerate.py
"""

# %%
import os
from collectives import check, check_training, digits, needs, run
from rank_grid import dealt
from one_process import network
from accelerate import Accelerator, DataLoaderConfiguration
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

# %% [markdown]
# ## The idea
#
# `Accelerator.prepare` wraps a model in DDP, gives the loader a sampler, and moves everything to
# the device. The rest of the loop stays, but for one line: `accelerator.backward(loss)`.
#
# | by hand | with Accelerate |
# |---|---|
# | `DDP(model)` | `accelerator.prepare(model)` |
# | `DistributedSampler(data)`, `set_epoch(epoch)` | `shuffle=True`, `accelerator.prepare(loader)` |
# | `loss.backward()` | `accelerator.backward(loss)` |
# | `with model.no_sync():`, `loss / k` | `with accelerator.accumulate(model):` |
# | `torch.autocast("cuda", torch.bfloat16)` | `Accelerator(mixed_precision="bf16")` |
# | `all_gather`, then drop what was padded | `accelerator.gather_for_metrics(x)` |
# | `if rank == 0:` | `if accelerator.is_main_process:` |
# | `device`, chosen by `LOCAL_RANK` | `accelerator.device` |
# | `torch.save` on rank 0 | `accelerator.save` |
# | `model.module.state_dict()` | `accelerator.unwrap_model(model).state_dict()` |

# %% [markdown]
# ## The code
#
# `train` is the loop of both programs: two epochs, with 128 images of all ranks in each step. By
# hand, the sampler gives each rank shard `rank` of `replicas`, and with one replica that is one
# process.


# %%
def train(model, optimizer, loader, set_epoch, backward):
    losses = []
    for epoch in range(2):
        set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(images), labels)
            backward(loss)
            optimizer.step()
            losses.append(loss.item())
    return (model, optimizer), losses


def by_hand(model, size, replicas, rank, device):
    torch.set_num_threads(1)  # the ranks of one machine share its cores
    os.environ["OMP_NUM_THREADS"] = "1"  # as torchrun does; else Accelerate warns
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sampler = DistributedSampler(range(1797), replicas, rank, drop_last=True)
    loader = DataLoader(TensorDataset(*digits(device)), size, sampler=sampler, drop_last=True)
    return train(model, optimizer, loader, sampler.set_epoch, torch.Tensor.backward)


# %%
def by_accelerate(model, size, device):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = DataLoader(TensorDataset(*digits(device)), size, shuffle=True, drop_last=True)
    config = DataLoaderConfiguration(use_seedable_sampler=True, data_seed=0)  # as the sampler
    accelerator = Accelerator(cpu=device.type == "cpu", dataloader_config=config)
    prepared = accelerator.prepare(model, optimizer, loader)
    check(accelerator.unwrap_model(prepared[0]) is model, True, "unwrap_model")
    check(type(prepared[1]).__name__, "AcceleratedOptimizer", "prepare")
    check(accelerator.is_main_process, dist.get_rank() == 0, "is_main_process")
    check(accelerator.device.type, device.type, "accelerator.device")
    return train(*prepared, prepared[2].set_epoch, accelerator.backward)


def with_accelerate(rank, world_size, device):
    size = 128 // world_size
    ours, own = by_hand(DDP(network(rank, device)), size, world_size, rank, device)
    trained, losses = by_accelerate(network(rank, device), size, device)
    expected, _ = by_hand(network(0, device), size * world_size, 1, 0, device)
    check_training(trained, ours, "Accelerate and ours")
    check_training(trained, expected, "Accelerate and one process")
    return {"last loss": losses[-1], "by hand": own[-1]}


# %%
if __name__ == "__main__":
    run(with_accelerate)

# %% [markdown]
# Both have the model of one process. But look at the losses of a rank: with Accelerate they are not
# those by hand. The ranks must have seen other images.
#
# ### Who takes which image
#
# To see which ones, this step asks both loaders for a batch of 8 images on each rank, without
# shuffling.

# %% [markdown]
# **Predict first.** Each of four ranks takes 8 of the first 32 images. By hand, rank 1 begins with
# the images 1, 5 and 9. Does Accelerate give it the same ones?


# %%
def first_images(rank, world_size, device):
    os.environ["OMP_NUM_THREADS"] = "1"  # as torchrun does; else Accelerate warns
    data, size = TensorDataset(torch.arange(1797)), 8
    sampled = DataLoader(data, size, sampler=DistributedSampler(data, shuffle=False))
    cut = Accelerator(cpu=device.type == "cpu").prepare(DataLoader(data, size))
    (by_hand,), (accelerate,) = next(iter(sampled)), next(iter(cut))
    check(by_hand, torch.arange(size) * world_size + rank, "DistributedSampler")
    check(accelerate.cpu(), torch.arange(size) + rank * size, "Accelerate")
    both = {"by hand": by_hand, "Accelerate": accelerate.cpu()}
    grid = dealt({name: (range(size * world_size), mine.tolist()) for name, mine in both.items()})
    return {"first three": [mine[:3].tolist() for mine in both.values()], "images": grid}


# %%
if __name__ == "__main__":
    run(first_images, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# No, with 8, 9 and 10. Accelerate cuts the order into batches of 8, and gives every fourth batch to
# a rank. The images of a step are the same in all, and so is the mean of their gradients, which is
# why the model is the same, too.
#
# </details>

# %% [markdown]
# ### Exact metrics
#
# For a training it does not matter who takes which image. For a validation it matters that each
# counts once. With four ranks, 1,797 images are 14 rounds of 4 batches, and 5 images are left, so
# Accelerate fills the last round with images from the beginning.

# %% [markdown]
# **Predict first.** Does the accuracy of what `all_gather` collects differ from that of the data?


# %%
def exact_metrics(rank, world_size, device):
    (model, _), _ = by_hand(network(0, device), 128, 1, 0, device)
    accelerator = Accelerator(cpu=device.type == "cpu")
    loader = accelerator.prepare(DataLoader(TensorDataset(*digits(device)), 128 // world_size))
    gathered, exact = [], []
    for images, labels in loader:
        right = model(images).argmax(1) == labels
        parts = [torch.empty_like(right) for _ in range(world_size)]
        dist.all_gather(parts, right)
        gathered += parts
        exact.append(accelerator.gather_for_metrics(right))
    found = {"all_gather": torch.cat(gathered), "gather_for_metrics": torch.cat(exact)}
    images, labels = digits(device)
    check(found["gather_for_metrics"], model(images).argmax(1) == labels, "gather_for_metrics")
    return {name: f"{x.sum()} of {len(x)}" for name, x in found.items()}


# %%
if __name__ == "__main__":
    run(exact_metrics, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Yes: it collects 1920 predictions of 1797 images, so 1920 - 1797 = 123 are there twice.
# `gather_for_metrics` knows the length of the data, and cuts them off.
#
# </details>

# %% [markdown]
# ### Some ranks train, others do not
#
# So far all ranks did the same. In reinforcement learning some train, and some only use the model.
# Here ranks 0, 1 and 2 train in a group, by hand, and rank 3 is an engine that gets the parameters
# from rank 0.


# %%
@needs(ranks=4)
def trainers_and_engine(rank, world_size, device):
    trainers = dist.new_group([0, 1, 2])
    model = network(rank, device)
    if rank in (0, 1, 2):
        by_hand(DDP(model, process_group=trainers), 42, 3, rank, device)
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
    (expected, _), _ = by_hand(network(0, device), 126, 1, 0, device)
    fresh = torch.optim.SGD(model.parameters(), lr=0.1)  # an engine has no optimizer
    check_training((model, fresh), (expected, fresh), "the engine")
    accelerator = Accelerator(cpu=device.type == "cpu")
    check(accelerator.num_processes, world_size, "ranks of an Accelerator")
    return {"role": "trainer" if rank < 3 else "engine", "ranks": accelerator.num_processes}


# %%
if __name__ == "__main__":
    run(trainers_and_engine)

# %% [markdown]
# By hand that works. An Accelerator has no option for a group, and it counts 4 ranks, also on the
# engine. So `prepare` would wrap the model for a rank that never calls `backward()`, and the
# trainers would wait for it.

# %%
STEPS = [with_accelerate, first_images, exact_metrics, trainers_and_engine]

# %% [markdown]
# ## The proof
#
# `check_training` compares model and optimizer, which Accelerate has wrapped, with ours and with
# those of one process. `gather_for_metrics` must give the predictions of one process, in its order.

# %% [markdown]
# ## Make it wrong
#
# Make one change, run the steps, read what the proof says, and undo it.
#
# 1. **The model is not prepared.** In `by_accelerate`, change `prepared =
#    accelerator.prepare(model, optimizer, loader)` to `prepared = model,
#    *accelerator.prepare(optimizer, loader)`. It says `2.bias.momentum_buffer: relative error 2`.
# 2. **The same order in each epoch.** In `by_accelerate`, change `prepared[2].set_epoch` to `lambda
#    epoch: prepared[2].set_epoch(0)`. It says `2.bias.momentum_buffer: relative error 0.6`.
# 3. **Everything that was gathered counts.** In `exact_metrics`, change `gather_for_metrics(right)`
#    to `gather(right)`. It says `[gather_for_metrics, bool[1920], gloo]`.

# %% [markdown]
# ## Pitfalls
#
# - `accelerator.backward` divides the loss by `gradient_accumulation_steps`, so do not divide
#   again.
# - The batch size of the loader is that of one rank. With `split_batches=True` it is that of all.
# - `accelerate launch --num_processes 2` starts two ranks on GPUs, as torchrun does, and needs no
#   `accelerate config`. On a CPU it starts [one](../../notebooks/hearsay.ipynb).
# - End with `accelerator.end_training()`: `python` [makes no group](../../notebooks/hearsay.ipynb).

# %% [markdown]
# ## Read on
#
# [Accelerate](https://huggingface.co/docs/accelerate), its documentation: also DeepSpeed and FSDP.
# [train_accelerate.py](../../examples/train_accelerate.py) is a whole program, which needs nothing
# of this package: it accumulates, counts each image once, and continues from its last epoch.
#
# Accelerate hides the processes, and `nn.DataParallel` starts none. Next lesson:
# [threads](../../notebooks/training/threads.ipynb), why PyTorch left them for processes.
