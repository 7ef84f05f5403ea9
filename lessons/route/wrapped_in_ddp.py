# %% [markdown]
"""
# wrapped_in_ddp: DistributedDataParallel, your training loop unchanged

`DistributedDataParallel` (DDP) sends what your loops have sent: you wrap the model in it, and the
training loop stays that of one process.

After [who_takes_what](../../notebooks/route/who_takes_what.ipynb) you have written every call of a
data parallel training yourself. At the end of this lesson DDP makes them for you, on a GPU for each
rank if there is one, and you can say in which line of your program it sends what.

    python lessons/route/wrapped_in_ddp.py
    torchrun --nproc-per-node 2 examples/route/5_wrapped_in_ddp.py
"""

# %%
from collectives import check, needs, run
from started import started

# %% [markdown]
# ## The idea
#
# DDP is a module that holds your model. It communicates in three places:
#
# 1. **Its constructor** compares the shapes of all parameters, and broadcasts the parameters and
#    buffers of rank 0. This is the loop of the third program.
# 2. **Its forward**, so the line `model(images)`, begins with a broadcast of rank 0's buffers. A
#    batch norm then changes them, on each rank with its own images, until the next broadcast.
# 3. **backward()** averages the gradients, as the loop of the second program did. But DDP doesn't
#    wait until the end: it puts gradients together into buckets of up to 25 MB, and reduces a
#    bucket while `backward()` computes the next one.
#
# The second place surprises people: `model(images)` is a call that all ranks must make.

# %% [markdown]
# ## The difference
#
# This is what [5_wrapped_in_ddp.py](../../examples/route/5_wrapped_in_ddp.py) has and the program
# before does not:
#
# ```diff
#  def main():
# -    dist.init_process_group("gloo")
# +    # Each rank takes a GPU of its machine, which counts them from 0; or all take the CPU.
# +    gpu = int(os.environ["LOCAL_RANK"])
# +    on_gpus = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
# +    device = torch.device("cuda", gpu) if on_gpus else torch.device("cpu")
# +    if on_gpus:
# +        torch.cuda.set_device(device)
# +    dist.init_process_group("nccl" if on_gpus else "gloo")
#
#  loader = DataLoader(data, BATCH // n, sampler=sampler, num_workers=1)
# -model = Network().double()
# -for tensor in model.state_dict().values():  # its parameters and its buffers
# -    dist.broadcast(tensor, src=0)
# +model = Network().double().to(device)
# +model = DistributedDataParallel(model, device_ids=[gpu] if on_gpus else None)
#
#  for images, labels in loader:
# -    loss = cross_entropy(model(images), labels)
# +    loss = cross_entropy(model(images.to(device)), labels.to(device))
#      optimizer.zero_grad()
#      loss.backward()
# -    for parameter in model.parameters():
# -        dist.all_reduce(parameter.grad)  # the sum of all ranks ...
# -        parameter.grad /= n  # ... becomes their mean
# ```
#
# - `LOCAL_RANK`, from torchrun, selects the GPU: rank 9 may be the second rank of its machine, so
#   it takes GPU 1.
# - `set_device` comes first, because otherwise the current GPU of every rank is GPU 0.
# - `device_ids` tells DDP on which GPU the model is. On the CPU it must be `None`.
# - The optimizer may be made before or after DDP, because the parameters are the same.

# %% [markdown]
# ## What happens
#
# Our program called `all_reduce` once for each of 4 parameters, in each of 3 * 13 = 39 steps, and
# `broadcast` 5 times in all. The network's gradients have 19 kB altogether. The step below also
# runs the program with the random matrix as a parameter that isn't trained, in place of a buffer.

# %% [markdown]
# **Predict first.** How often is `all_reduce` called in these 39 steps now, and does `broadcast`
# become rarer or more frequent?


# %%
@needs(ranks=2, fresh=True)
def wrapped_in_ddp(rank, world_size, device):
    buffer = 'self.register_buffer("mix", torch.randn(64, 64) / 8)'
    parameter = "self.mix = nn.Parameter(torch.randn(64, 64) / 8, requires_grad=False)"
    mine = started("5_wrapped_in_ddp.py")[rank]
    less = started("5_wrapped_in_ddp.py", (buffer, parameter))[rank]
    by_hand = started("4_who_takes_what.py")[rank]
    # proof
    check(mine["weights"], by_hand["weights"], "the weights of our own program")
    calls, others = mine["calls"], less["calls"]
    check(calls["all_reduce"], 39, "one bucket in each step")
    check([calls["broadcast"], others["broadcast"]], [43, 4], "broadcasts, also without buffers")
    found = {name: calls[name] for name in ("all_reduce", "broadcast")}
    return found | {"without buffers": others["broadcast"]}


# %%
if __name__ == "__main__":
    run(wrapped_in_ddp, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# `all_reduce` is called 39 times, once in each step, because all four gradients fit into one
# bucket. `broadcast` is called 43 times: 4 calls remain without buffers, in the constructor and
# when DDP orders its buckets after the first step, and 43 - 4 = 39 are those of forward. The
# weights are those of our own program.
#
# </details>

# %% [markdown]
# A buffer that never changes need not be sent in every step: with a parameter in its place, forward
# sends nothing.

# %% [markdown]
# ## Pitfalls
#
# - Call `model(images)`, not `model.module(images)`, when you train: only DDP's own forward
#   prepares the reduction. Without it each rank trains a model of its own again, and no error says
#   so.
# - For everything else use `model.module`, which is your own model: it sends nothing. You will
#   validate with it and save it, since `model.state_dict()` has names that begin with `module.`.

# %% [markdown]
# ## Write it yourself
#
# Make such a bucket, in your folder of [exercises](../../README.md#exercises):
#
# ```sh
# collectives practice one_bucket
# ```

# %%
STEPS = [wrapped_in_ddp]

# %% [markdown]
# ## Read on
#
# What if the batch of one rank doesn't fit on its GPU? Next lesson:
# [micro_batches](../../notebooks/route/micro_batches.ipynb), which computes it in parts, and sends
# the gradients once.
