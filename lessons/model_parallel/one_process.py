"""One process trains the model: what every lesson of this chapter must equal."""

from contextlib import nullcontext

from collectives import note_samples
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from model import batch

UPDATES = 3


def backward(model, letters, following):
    cross_entropy(model(letters).flatten(0, 1), following.flatten()).backward()


def train(model, device, backward=backward, steps=UPDATES, rate=0.001, live=None):
    """Steps of Adam, after the last of which the gradients are kept: (model, optimizer).

    `live` counts the memory of forward and backward passes.
    """
    torch.set_num_threads(1)  # the ranks of one machine share its cores
    # On a GPU the default is foreach=True, which refuses DTensors among plain tensors.
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, foreach=False)
    note_samples(model, optimizer)
    for step in range(steps):
        optimizer.zero_grad()
        with live or nullcontext():
            backward(model, *batch(step % 7, device))  # the text has seven batches
        optimizer.step()
    return model, optimizer


def without_state(model):
    """To compare the parameters alone."""
    return model, torch.optim.Adam(model.parameters())


def shard_of(trained, rank, n):
    """What rank `rank` of n must hold of this training: 1/n of each layer and of its Adam state."""
    model, optimizer = trained

    def shard(tensors):
        return torch.cat([one.detach().flatten() for one in tensors]).chunk(n)[rank]

    shards = nn.ParameterDict()
    mine = torch.optim.Adam([torch.zeros(0)])
    for name, layer in model.named_children():
        shards[name] = nn.Parameter(shard(layer.parameters()))
        states = [optimizer.state[one] for one in layer.parameters()]
        means = {key: shard([one[key] for one in states]) for key in ("exp_avg", "exp_avg_sq")}
        mine.state[shards[name]] = means | {"step": states[0]["step"]}
    return shards, mine
