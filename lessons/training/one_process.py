# %% [markdown]
"""
# one_process: what several ranks are compared with, batch size and learning rate

One process trains a small network, and the later lessons train the same one on several ranks.

When you train on several ranks, a mistake rarely raises an error, and you notice it only if you can
compare the network with one that is right. This lesson trains that network. All later lessons
spread the training over several processes, and prove that they get the same one.

At the end you know what small batches one after the other save, and why large models need thousands
of GPUs.

    python lessons/training/one_process.py
    torchrun --nproc-per-node 4 lessons/training/one_process.py
"""

# %%
from collectives import Curve, check, check_training, computed, digits, note_samples, run
import weakref
import torch
from torch import nn
from torch.nn.functional import cross_entropy

# %% [markdown]
# ## The idea
#
# The data are 1,797 images of handwritten digits, 8 by 8 pixels each. The network has 64 inputs, 32
# hidden units and 10 outputs, one for each digit. A batch has 64 images.
#
# Nothing is distributed yet: each rank trains alone, on all images. We use float64, because the
# later lessons add up the same numbers in another order and must still get the same network.

# %% [markdown]
# ## The code
#
# `train` is an ordinary training loop, with one opening for the later lessons: its argument
# `backward` is the function that computes the gradient. Here that is `batch_loss`. In the next
# lessons only this function changes. The optimizer is SGD with momentum, which keeps a running sum
# of the gradients of each parameter, its `momentum_buffer`.
#
# `seed` sets the first parameters of the network, and `shuffled` the order of the images. The
# layers have numbers, by which a failing proof names them: `0.weight` and `0.bias` belong to the
# first one, `2.weight` and `2.bias` to the last one.
#
# Four names come from the package. `digits` loads images and labels, and `Curve` draws a list of
# numbers. `check_training` fails unless two trainings gave the same parameters and momentum.
# `note_samples` notes which images the model computes, for the proof of the next lesson.


# %%
def network(seed, device):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).double().to(device)


def shuffled(seed=0):
    return torch.randperm(1797, generator=torch.Generator().manual_seed(seed))


def train(model, backward, batches, device, lr=0.1, momentum=0.9):
    torch.set_num_threads(1)  # the ranks of one machine share its cores
    images, labels = digits(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    note_samples(model, optimizer)
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        losses.append(backward(model, images[batch], labels[batch]))
        optimizer.step()
    return (model, optimizer), Curve(losses)


# %% [markdown]
# **Predict first.** Four ranks train with seed 0, and each one alone. How many different networks
# are there in the end?


# %%
def batch_loss(model, images, labels):
    loss = cross_entropy(model(images), labels)  # the mean over the batch
    loss.backward()
    return loss.item()


def one_process(rank, world_size, device):
    batches = shuffled()[:1792].split(64)  # 28 batches of 64 images; 5 images are left out
    trained, losses = train(network(0, device), batch_loss, batches, device)

    again, _ = train(network(0, device), batch_loss, batches, device)
    check_training(trained, again, "the same training again")
    return {"loss": losses}


# %%
if __name__ == "__main__":
    run(one_process, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# One, in four copies. All ranks start with the same seed and see the same batches, so they do the
# same work four times, to the last bit. To gain anything, they must share the work.
#
# </details>

# %% [markdown]
# ### What `.grad` holds
#
# The derivative of x * x is 2 x, which is 8 at x = 4. The step computes x * x twice, because
# `backward()` frees the graph unless it has `retain_graph=True`.

# %% [markdown]
# **Predict first.** `backward()` runs twice. What is `x.grad` afterwards?


# %%
def grad_adds_up(rank, world_size, device):
    x = torch.tensor(4.0, device=device, requires_grad=True)
    (x * x).backward()
    first = x.grad.item()
    (x * x).backward()
    check([first, x.grad.item()], [2 * x.item(), 2 * 2 * x.item()], "backward()")
    return {"first": first, "second": x.grad}


# %%
if __name__ == "__main__":
    run(grad_adds_up, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 16, because `backward()` adds to what `.grad` holds already. That is why a training loop calls
# `optimizer.zero_grad()`.
#
# </details>

# %% [markdown]
# ### Micro-batches
#
# You know them from [micro_batches](../../notebooks/route/micro_batches.ipynb). Here we also count
# what they save.


# %%
def in_micro_batches(model, images, labels):
    loss = 0.0
    for x, y in zip(images.split(16), labels.split(16), strict=True):
        share = cross_entropy(model(x), y) * len(x) / len(images)
        share.backward()  # adds to .grad
        loss += share.item()
    return loss


def most_kept(backward, model, images, labels):
    """The most bytes that autograd keeps at a time for `backward`, beside the parameters."""
    kept, most, own = weakref.WeakSet(), [0], {one.data_ptr() for one in model.parameters()}

    def pack(tensor):
        kept.add(one := tensor.detach())  # the same memory, and it dies with the graph
        sizes = {each.data_ptr(): each.nbytes for each in kept if each.dim() > 0}
        most.append(sum(size for where, size in sizes.items() if where not in own))
        return one

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda one: one):
        backward(model, images, labels)
    return max(most)


def micro_batches(rank, world_size, device):
    model, passes = network(0, device), []
    model.register_forward_pre_hook(lambda model, inputs: passes.append("forward"))
    model[2].bias.register_hook(lambda gradient: passes.append("backward"))
    trained, losses = train(model, in_micro_batches, shuffled().split(64), device)

    in_turn = ["forward", "backward"] * -(-1797 // 16)
    check(passes, in_turn, "one graph at a time: each micro-batch goes back before the next one")
    expected, whole = train(network(0, device), batch_loss, shuffled().split(64), device)
    check_training(trained, expected, "micro-batches of 16")
    check(torch.tensor(losses.values), torch.tensor(whole.values), "losses", rtol=1e-6)
    batch = [one[shuffled()[:64]] for one in digits(device)]
    kept = [most_kept(one, network(0, device), *batch) for one in (batch_loss, in_micro_batches)]
    check(kept, [4 * kept[1], kept[1]], "bytes that autograd keeps")
    return {"first and last loss": str(losses), "bytes, 64 and 4 times 16": kept}


# %%
if __name__ == "__main__":
    run(micro_batches)

# %% [markdown]
# The gradients are the same, and the memory is not: for one batch of 64 autograd keeps four times
# the bytes that it keeps for a micro-batch of 16, because each `backward()` frees its graph before
# the next one is built.
#
# ### Why more than one process
#
# Why do some jobs need thousands of GPUs? The largest Llama 3 has 405 billion parameters and was
# trained on 15.6 trillion tokens. [Its authors](https://arxiv.org/abs/2407.21783) report 3.8e25
# operations on up to 16,384 H100 GPUs. Such a GPU has 80 GB, and made about 400e12 operations per
# second, 38 to 43 % of its peak.
#
# You can check these numbers, because training takes 6 operations for each parameter and token
# ([Kaplan and others](https://arxiv.org/abs/2001.08361)). Adam in mixed precision needs 16 bytes
# for each parameter ([ZeRO](https://arxiv.org/abs/1910.02054)), and the outputs of the layers need
# more.

# %% [markdown]
# **Predict first.** What does one H100 lack for this training: time, memory or both?


# %%
@computed
def llama_405b(rank, world_size, device):
    parameters, tokens = 405e9, 15.6e12
    operations = 6 * parameters * tokens
    check(f"{operations:.1e}", "3.8e+25", "what the paper says")
    years = operations / 400e12 / (365.25 * 24 * 3600)
    check(years > 1000, True, "thousands of years")
    return {"years on one GPU": round(years), "GB for Adam": 16 * parameters / 1e9}


# %%
if __name__ == "__main__":
    run(llama_405b, folded=True)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Both. One GPU would train for 3,003 years, and not for hundreds, as one reads, and the 6,480 GB
# for Adam alone fill 6,480 / 80 = 81 GPUs. No larger GPU (*vertical scaling*) has this, so more
# GPUs share the work (*horizontal scaling*).
#
# Data parallel training, in the next lessons, divides the time. It does not divide the memory,
# because every rank holds the whole model. That is the subject of the chapter
# [model_parallel](../../docs/contents.md#model_parallel).
#
# </details>

# %%
STEPS = [one_process, grad_adds_up, micro_batches, llama_405b]

# %% [markdown]
# ## The proof
#
# `check_training` compares two trainings, each a model and its optimizer. For every parameter and
# every momentum buffer, the norm of the difference may be at most 1e-9 of the norm. The ranks must
# agree to the last bit. If the proof fails, the message names the rank with the largest error.

# %% [markdown]
# ## Make it wrong
#
# Make one change, run the steps, read what the proof says, and undo it.
#
# 1. **Every rank starts elsewhere.** In `one_process`, change `trained, losses = train(network(0,`
#    to `trained, losses = train(network(rank,`. It says `rank 2/4: 2.bias.momentum_buffer: relative
#    error 2, should be at most 1e-09`: the ranks no longer have one network.
# 2. **Each micro-batch counts as a whole batch.** In `in_micro_batches`, change `* len(x) /
#    len(images)` to `* 1`. It says `0.bias.momentum_buffer: relative error 5`: the gradient of 64
#    images is four times as large.
# 3. **Each micro-batch counts as a quarter.** In `in_micro_batches`, change `len(x) / len(images)`
#    to `1 / 4`. It says `2.bias.momentum_buffer: relative error 0.6`. Only the last batch is wrong:
#    its 5 images are a single micro-batch, which must count fully.

# %% [markdown]
# ## Pitfalls
#
# - Call `backward()` for each micro-batch. If you add up their losses first, autograd must [keep
#   every graph](../../notebooks/hearsay.ipynb).
# - n processes on one machine, each with as many threads as there are cores, slow each other down.
#   `torch.set_num_threads(1)` prevents it.

# %% [markdown]
# ## Read on
#
# Next lesson: [shards](../../notebooks/training/shards.ipynb), where several ranks train this
# network. How they do it is the subject of the [nine
# lessons](../../notebooks/route/two_copies.ipynb) before this chapter.
