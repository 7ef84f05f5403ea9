# %% [markdown]
"""
# with_accelerate

Hugging Face Accelerate wraps the model, the optimizer and the loader of a training. Underneath are
DDP and a sampler.

You will see that it trains the same model as DDP with DistributedSampler, which images each rank
takes, what `gather_for_metrics` drops, and where Accelerate does not fit.

    python lessons/training/with_accelerate.py
    torchrun --nproc-per-node 4 lessons/training/with_accelerate.py
"""

# %%
import os

from collectives import Curve, check, check_training, digits, needs, run
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
# A training on several ranks wraps its model in DDP, gives its loader a DistributedSampler, calls
# `set_epoch` before each epoch, and moves everything to its device. `Accelerator.prepare` does all
# of this. The rest of the loop stays, but for one line: `accelerator.backward(loss)`.
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
# | `model.module.state_dict()` | `accelerator.unwrap_model(model).state_dict()` |
# | `dist.destroy_process_group()` | `accelerator.end_training()` |

# %% [markdown]
# ## The code
#
# Two epochs with 128 images in each step, all ranks together. `train` is the loop of both programs.


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
    return (model, optimizer), Curve(losses)


# %% [markdown]
# ### By hand
#
# `replicas` and `rank` tell the sampler which shard to give out. With one replica it gives out all
# images: that is the training of one process.


# %%
def by_hand(model, size, replicas, rank, device):
    torch.set_num_threads(1)  # the ranks of one machine share its cores
    os.environ["OMP_NUM_THREADS"] = "1"  # as torchrun does; else Accelerate warns
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    sampler = DistributedSampler(range(1797), replicas, rank, drop_last=True)
    loader = DataLoader(TensorDataset(*digits(device)), size, sampler=sampler, drop_last=True)
    return train(model, optimizer, loader, sampler.set_epoch, torch.Tensor.backward)


# %% [markdown]
# ### With Accelerate
#
# DistributedSampler shuffles epoch e with the seed 0 + e. The configuration makes Accelerate do the
# same. Otherwise its order of the images is another one.


# %%
def by_accelerate(model, size, device):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loader = DataLoader(TensorDataset(*digits(device)), size, shuffle=True, drop_last=True)
    config = DataLoaderConfiguration(use_seedable_sampler=True, data_seed=0)
    accelerator = Accelerator(cpu=device.type == "cpu", dataloader_config=config)
    prepared = accelerator.prepare(model, optimizer, loader)
    check(accelerator.unwrap_model(prepared[0]) is model, True, "unwrap_model")
    check(accelerator.is_main_process, dist.get_rank() == 0, "is_main_process")
    return train(*prepared, prepared[2].set_epoch, accelerator.backward)


# %%
def with_accelerate(rank, world_size, device):
    ours, own = by_hand(DDP(network(rank, device)), 128 // world_size, world_size, rank, device)
    trained, losses = by_accelerate(network(rank, device), 128 // world_size, device)

    expected, _ = by_hand(network(0, device), 128 // world_size * world_size, 1, 0, device)
    check_training(trained, ours, "Accelerate and ours")
    check_training(trained, expected, "Accelerate and one process")
    return {"loss": losses, "loss by hand": str(own)}


# %%
if __name__ == "__main__":
    run(with_accelerate)

# %% [markdown]
# The losses of a rank are not those by hand, although both have the model of one process.
#
# ### Who takes which image
#
# This step asks both loaders for the first batch of each rank, without shuffling.


# %%
def first_images(rank, world_size, device):
    os.environ["OMP_NUM_THREADS"] = "1"  # as torchrun does; else Accelerate warns
    data, size = TensorDataset(torch.arange(1797)), 128 // world_size
    dealt = DataLoader(data, size, sampler=DistributedSampler(data, shuffle=False))
    cut = Accelerator(cpu=device.type == "cpu").prepare(DataLoader(data, size))
    (by_hand,), (accelerate,) = next(iter(dealt)), next(iter(cut))
    check(by_hand, torch.arange(size) * world_size + rank, "DistributedSampler")
    check(accelerate.cpu(), torch.arange(size) + rank * size, "Accelerate")
    return {"by hand": by_hand[:3], "Accelerate": accelerate[:3]}


# %% [markdown]
# **Predict first.** Each of four ranks takes 32 of the first 128 images. By hand, rank 1 begins
# with the images 1, 5 and 9. Does it with Accelerate?

# %%
if __name__ == "__main__":
    run(first_images)

# %% [markdown]
# <details><summary>Answer</summary>
#
# No, with 32, 33 and 34. DistributedSampler gives every fourth image to a rank. Accelerate cuts the
# order into batches of 32, and gives every fourth batch to a rank. The 128 images of a step are the
# same, and so is the mean of their gradients.
#
# </details>

# %% [markdown]
# ### Exact metrics
#
# With four ranks, 1,797 images are 14 rounds of 4 batches, and 5 images are left. By default,
# Accelerate fills the last round with images from the beginning, so that all ranks get equally many
# batches. These images must not be counted twice.


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


# %% [markdown]
# **Predict first.** Does the accuracy of what `all_gather` collects differ from that of the data?

# %%
if __name__ == "__main__":
    run(exact_metrics)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Yes: it collects 1920 predictions of 1797 images, so 1920 - 1797 = 123 are there twice.
# `accelerator.gather` returns the same. `gather_for_metrics` knows the length of the data, and cuts
# the last round.
#
# </details>

# %% [markdown]
# ### Some ranks train, others do not
#
# Ranks 0, 1 and 2 train in a group of their own, by hand. Rank 3 is an engine that only uses the
# model, as in reinforcement learning, and gets the parameters from rank 0. An Accelerator has no
# option for such a group: it always counts all ranks.


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
    return {"role": "trainer" if rank < 3 else "engine", "ranks": accelerator.num_processes}


# %% [markdown]
# **Predict first.** How many ranks does an Accelerator count here?

# %%
if __name__ == "__main__":
    run(trainers_and_engine)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 4, on the engine, too. So `prepare` would wrap the model for a rank that never calls `backward()`,
# and the trainers would wait for it.
#
# </details>

# %%
STEPS = [with_accelerate, first_images, exact_metrics, trainers_and_engine]

# %% [markdown]
# ## The proof
#
# `check_training` compares the model that Accelerate trained with ours and with that of one
# process, and so the state of the optimizer, which Accelerate has wrapped. The predictions of
# `gather_for_metrics` must be those of one process, in the same order.

# %% [markdown]
# ## Make it wrong
#
# Each of these is one change. Predict what goes wrong. Then make it, run the steps, read what the
# proof says, and undo it.
#
# 1. **The model is not prepared.** In `by_accelerate`, change `prepared =
#    accelerator.prepare(model, optimizer, loader)` to `prepared = model,
#    *accelerator.prepare(optimizer, loader)`.
#
#    <details><summary>Answer</summary>
#
#    It says `rank 1/4: 2.bias.momentum_buffer: relative error 2`.
#
#    </details>
#
# 2. **The same order in each epoch.** In `by_accelerate`, change `prepared[2].set_epoch` to `lambda
#    epoch: prepared[2].set_epoch(0)`.
#
#    <details><summary>Answer</summary>
#
#    It says `rank 0/4: 2.bias.momentum_buffer: relative error 0.6`.
#
#    </details>
#
# 3. **set_epoch is forgotten by hand.** In `by_hand`, change `sampler.set_epoch` to `id`.
#
#    <details><summary>Answer</summary>
#
#    It says `rank 0/4: 2.bias.momentum_buffer: relative error 0.6`. Accelerate counts the epochs
#    itself.
#
#    </details>
#
# 4. **Everything that was gathered counts.** In `exact_metrics`, change `gather_for_metrics(right)`
#    to `gather(right)`.
#
#    <details><summary>Answer</summary>
#
#    It says `[gather_for_metrics, bool[1920], gloo]`.
#
#    </details>

# %% [markdown]
# ## Pitfalls
#
# - `accelerator.gather(x)` returns the tensors of all ranks and leaves `x` as it is. If the result
#   is dropped, the program prints the metric of rank 0. `loss.item()` is that of one rank, too.
# - `accelerator.backward` divides the loss by `gradient_accumulation_steps`. Do not divide again.
# - A loader that was not prepared gives every rank the same images, or other ones by chance. There
#   is no error.
# - The batch size of the loader is that of one rank. With `split_batches=True` it is that of all.
# - An Accelerator spans all ranks. Two of them in one process share one state.
# - `accelerate launch --num_processes 2` starts two ranks on GPUs, as torchrun does. With `--cpu`
#   it starts one process (`accelerate/commands/launch.py`: "elif args.multi_gpu and not args.cpu:
#   multi_gpu_launcher(args)").
# - Accelerate writes RANK, WORLD_SIZE and MASTER_PORT into the environment of its process.

# %% [markdown]
# ## Read on
#
# - [Accelerate](https://huggingface.co/docs/accelerate), its documentation: also DeepSpeed and
#   FSDP.
# - [gather_for_metrics](https://github.com/huggingface/accelerate/issues/226): the issue in which
#   the doubled samples of `gather` were noticed.
#
# In PyTorch's documentation:
#
# - [`all_gather`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.all_gather)
# - [`broadcast`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.broadcast)
# - [`new_group`](https://docs.pytorch.org/docs/stable/distributed.html#torch.distributed.new_group)
#
# Next lesson: [threads](../../notebooks/training/threads.ipynb), why processes and not threads.
