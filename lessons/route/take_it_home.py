# %% [markdown]
"""
# take_it_home: the finished DDP script, for your model and data

The finished program, from top to bottom: put your own model and your own data into it.

You have seen almost every line of it come. At the end of this lesson you have a DDP training of
your own.

    python lessons/route/take_it_home.py
    torchrun --nproc-per-node 2 examples/route/9_train_ddp.py
"""

# %%
from tempfile import TemporaryDirectory
from collectives import check, needs, run
from started import started

# %% [markdown]
# ## The program
#
# [9_train_ddp.py](../../examples/route/9_train_ddp.py) is the program of
# [save_and_resume](../../notebooks/route/save_and_resume.ipynb), whose constants have become
# arguments. This is the difference:
#
# ```diff
# -EPOCHS, BATCH, PARTS, DROPOUT = 3, 120, 4, 0.1
# -
#
#  class Network(nn.Module):
# -    def __init__(self):
# +    def __init__(self, dropout):
#          super().__init__()
#          self.register_buffer("mix", torch.randn(64, 64) / 8)  # random, and not trained
# -        layers = nn.Linear(64, 32), nn.ReLU(), nn.Dropout(DROPOUT), nn.Linear(32, 10)
# +        layers = nn.Linear(64, 32), nn.ReLU(), nn.Dropout(dropout), nn.Linear(32, 10)
#
# -def main():
# +def main(options):
#
#  sampler = DistributedSampler(data)
# -loader = DataLoader(data, BATCH // n, sampler=sampler, num_workers=1)
# -model = Network().double().to(device)
# +loader = DataLoader(data, options.batch // n, sampler=sampler, num_workers=options.workers)
# +model = Network(options.dropout).double().to(device)
#  model = DistributedDataParallel(model, device_ids=[gpu] if on_gpus else None)
#  optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
# -for epoch in range(load(model.module, optimizer), EPOCHS):
# +for epoch in range(load(model.module, optimizer), options.epochs):
#
#  optimizer.zero_grad()
# -parts = list(zip(images.chunk(PARTS), labels.chunk(PARTS), strict=True))
# +parts = list(zip(images.chunk(options.parts), labels.chunk(options.parts), strict=True))
#
#  if __name__ == "__main__":
# -    main()
# +    parser = argparse.ArgumentParser()
# +    parser.add_argument("--epochs", type=int, default=3)
# +    parser.add_argument("--batch", type=int, default=120, help="images of all ranks in a step")
# +    parser.add_argument("--parts", type=int, default=4, help="of a rank's batch, one by one")
# +    parser.add_argument("--dropout", type=float, default=0.1)
# +    parser.add_argument("--workers", type=int, default=1, help="that load the images of a rank")
# +    main(parser.parse_args())
# ```
#
# Now read the program from top to bottom. New to you are only the class `Network` and the function
# `digits`, in whose place you will put your own.
#
# <details><summary>The whole program</summary>
#
# ```python
# """9 of 9: the finished program: put your own model and data into it.
#
# Start it by `torchrun --nproc-per-node 2 9_train_ddp.py`.
# """
#
# import argparse
# import os
# from contextlib import nullcontext
# from pathlib import Path
#
# import torch
# import torch.distributed as dist
# from sklearn.datasets import load_digits
# from torch import nn
# from torch.nn.functional import cross_entropy
# from torch.nn.parallel import DistributedDataParallel
# from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset
#
#
# class Network(nn.Module):
#     def __init__(self, dropout):
#         super().__init__()
#         self.register_buffer("mix", torch.randn(64, 64) / 8)  # random, and not trained
#         layers = nn.Linear(64, 32), nn.ReLU(), nn.Dropout(dropout), nn.Linear(32, 10)
#         self.layers = nn.Sequential(*layers)
#
#     def forward(self, images):
#         return self.layers(images @ self.mix)
#
#
# def digits():
#     """1,500 images of digits to train with, and 297 others. Put your own data here."""
#     images, labels = map(torch.tensor, load_digits(return_X_y=True))
#     return [TensorDataset(images[a:b] / 16, labels[a:b]) for a, b in ((0, 1500), (1500, 1797))]
#
#
# @torch.no_grad()
# def validate(model, data, device, rank, n):
#     """How many images the model recognizes. Each rank counts its own, and no image is on two."""
#     model.eval()
#     right = torch.zeros((), dtype=torch.int64, device=device)
#     for images, labels in DataLoader(Subset(data, range(rank, len(data), n)), 100):
#         right += (model(images.to(device)).argmax(1) == labels.to(device)).sum()
#     dist.all_reduce(right)
#     return right.item()
#
#
# def save(epoch, model, optimizer):
#     """Rank 0 writes a file for all, which gets its name when all of it is there."""
#     if dist.get_rank() == 0:
#         state = {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
#         torch.save(state, "draft.pt")
#         Path("draft.pt").replace(f"epoch-{epoch:03}.pt")
#
#
# def load(model, optimizer):
#     """Rank 0 decides for all from which file they continue. Returns the first epoch to train."""
#     files = sorted(Path().glob("epoch-*.pt")) if dist.get_rank() == 0 else []
#     found = [torch.load(files[-1], map_location="cpu") if files else None]
#     dist.broadcast_object_list(found, src=0)
#     if (state := found[0]) is None:
#         return 0
#     model.load_state_dict(state["model"])
#     optimizer.load_state_dict(state["optimizer"])
#     return state["epoch"] + 1
#
#
# def main(options):
#     # Each rank takes a GPU of its machine, which counts them from 0; or all take the CPU.
#     gpu = int(os.environ["LOCAL_RANK"])
#     on_gpus = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
#     device = torch.device("cuda", gpu) if on_gpus else torch.device("cpu")
#     if on_gpus:
#         torch.cuda.set_device(device)
#     dist.init_process_group("nccl" if on_gpus else "gloo")
#     rank, n = dist.get_rank(), dist.get_world_size()
#     torch.manual_seed(rank)  # as if it had none: every process begins with other numbers
#     data, held_out = digits()
#     sampler = DistributedSampler(data)
#     loader = DataLoader(data, options.batch // n, sampler=sampler, num_workers=options.workers)
#     model = Network(options.dropout).double().to(device)
#     model = DistributedDataParallel(model, device_ids=[gpu] if on_gpus else None)
#     optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
#     for epoch in range(load(model.module, optimizer), options.epochs):
#         torch.manual_seed(epoch * n + rank)  # its own dropout on every rank, in every epoch
#         sampler.set_epoch(epoch)  # else every epoch has the order of the first
#         model.train()
#         for images, labels in loader:
#             optimizer.zero_grad()
#             parts = list(zip(images.chunk(options.parts), labels.chunk(options.parts), strict=True))
#             for number, (x, y) in enumerate(parts, 1):
#                 with model.no_sync() if number < len(parts) else nullcontext():
#                     loss = cross_entropy(model(x.to(device)), y.to(device))
#                     (loss * len(y) / len(labels)).backward()
#             optimizer.step()
#         right = validate(model.module, held_out, device, rank, n)
#         weights = sum(one.sum().item() for one in model.parameters())
#         print(f"rank {rank}, epoch {epoch}: right {right}/{len(held_out)}, weights {weights:.6f}")
#         save(epoch, model.module, optimizer)
#
#
# if __name__ == "__main__":
#     parser = argparse.ArgumentParser()
#     parser.add_argument("--epochs", type=int, default=3)
#     parser.add_argument("--batch", type=int, default=120, help="images of all ranks in a step")
#     parser.add_argument("--parts", type=int, default=4, help="of a rank's batch, one by one")
#     parser.add_argument("--dropout", type=float, default=0.1)
#     parser.add_argument("--workers", type=int, default=1, help="that load the images of a rank")
#     main(parser.parse_args())
#     dist.destroy_process_group()
# ```
#
# </details>

# %% [markdown]
# ## What happens
#
# The step starts the program on two ranks and as one process: first as it is, with dropout 0.1, and
# then with dropout 0. On each rank dropout draws random numbers of its own.

# %% [markdown]
# **Predict first.** In the first lesson, two ranks and one process trained three models. How many
# models do they train now with dropout, and how many without?


# %%
@needs(ranks=2, fresh=True)
def take_it_home(rank, world_size, device):
    models = {}
    for dropout in ("0.1", "0.0"):
        change = "default=0.1", f"default={dropout}"
        ranks = []
        for alone in (False, True):
            with TemporaryDirectory() as folder:
                ranks += started("9_train_ddp.py", change, alone=alone, folder=folder)
        models[dropout] = [(*one["right"], *one["weights"]) for one in ranks]
    # proof
    with_dropout, without = models.values()
    check(with_dropout[0] == with_dropout[1], True, "with dropout: both ranks")
    check(with_dropout[0] == with_dropout[2], False, "with dropout: two ranks and one process")
    check(without, [without[0]] * 3, "without dropout: all three")
    found = {f"dropout {name}": three[rank][-1] for name, three in models.items()}
    return found | {f"one process, {name}": three[2][-1] for name, three in models.items()}


# %%
if __name__ == "__main__":
    run(take_it_home, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Two with dropout: the ranks share one, because they average their gradients, whatever each of them
# drops, and its weights sum to 0.0605. The one process drops other units, and ends at -0.2024.
# Without dropout it is one model: the weights sum to 0.5783 on both ranks and in the one process.
#
# </details>

# %% [markdown]
# ## Make it yours
#
# Copy the file, and change this:
#
# 1. `Network` and the optimizer: yours. Leave out `.double()`, which is for comparing, and turn
#    float64 data into float32. With batch norm, each rank normalizes with its own images, and
#    `validate` has to begin with a broadcast of the buffers: see
#    [buffers](../../notebooks/training/buffers.ipynb).
# 2. `digits`: your datasets, any `Dataset` that a `DataLoader` takes. Every rank must find the same
#    data in the same order, so download and shuffle them beforehand.
# 3. The loss, and in `validate` what you count: sums only, divided after the `all_reduce`.
# 4. `--batch` is that of all ranks, so a multiple of n. Checkpoints lie in the current folder, and
#    the program resumes at the last: delete them to begin anew.
# 5. If some samples count more, as texts with more tokens do, multiply the loss as in
#    [accumulation](../../notebooks/training/accumulation.ipynb).
#
# And four questions for your own script: does every rank call everything that communicates,
# `model(...)` included? Does each epoch have its own order? Does each image count once in the
# validation? Does one rank decide, and all obey?

# %% [markdown]
# ## On a cluster
#
# [train_ddp.py](../../examples/train_ddp.py) is the same training for a cluster. It also starts
# under mpiexec and Slurm, a signal makes all ranks save and stop after the same step, and after a
# rank was killed all start again.

# %% [markdown]
# ## Write it yourself
#
# Close the program, and write a training with another model and other data.
# `collectives check-training -- yours.py` asks the four questions, and
# [more](../../docs/your-script.md).

# %%
STEPS = [take_it_home]

# %% [markdown]
# ## Read on
#
# Two doors lead on from here:
#
# - **It doesn't fit.** If the model is too large for one GPU, every rank keeps only a part of it,
#   and two calls put it together and take it apart: [all_gather](../../notebooks/all_gather.ipynb)
#   and [reduce_scatter](../../notebooks/reduce_scatter.ipynb). Then
#   [fully_sharded](../../notebooks/model_parallel/fully_sharded.ipynb) trains with them.
# - **The other calls.** Start with [all_reduce](../../notebooks/all_reduce.ipynb).
