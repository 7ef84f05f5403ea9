"""Attention in one process: what attention in blocks must equal."""

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from model import HEADS, LENGTH, WIDTH
from one_process import without_state


def chunks(numbers, *tensors):
    """By the number of a chunk of the text: its part of each tensor, as views."""
    parts = zip(*(one.chunk(len(numbers), dim=-2) for one in tensors), strict=True)
    return dict(zip(numbers, parts, strict=True))


def sample(device):
    """Queries, keys, values, and the gradient of the result: [8, HEADS, LENGTH, 4] each."""
    torch.manual_seed(0)
    shape = 4, 8, HEADS, LENGTH, WIDTH // HEADS
    return torch.randn(shape, dtype=torch.float64).to(device)


def alone(device):
    """The result in one process, and the gradients of queries, keys and values."""
    *inputs, gradient = sample(device).unbind()
    inputs = [one.requires_grad_() for one in inputs]
    result = scaled_dot_product_attention(*inputs, is_causal=True)
    return torch.stack([result.detach(), *torch.autograd.grad(result, inputs, gradient)])


def as_trained(tensors):
    """For `check_training`, which compares the parameters of models and their optimizers."""
    return without_state(nn.ParameterList(list(tensors)))


def places(numbers, n):
    """Where the characters of these chunks are in a text of 2 n chunks."""
    parts = torch.arange(LENGTH).chunk(2 * n)
    return torch.cat([parts[number] for number in numbers])
