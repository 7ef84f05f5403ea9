"""The blocks of tensor_parallel.py, whose ranks are those of a group."""

import torch
import torch.distributed as dist
from torch.nn.functional import gelu, linear

from model import Block


class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class SlicedBlock(Block):
    def forward(self, x):
        heads = self.attention(Enter.apply(self.norm1(x), self.group))
        x = x + self.summed(self.out, heads)
        return x + self.summed(self.down, gelu(self.up(Enter.apply(self.norm2(x), self.group))))

    def summed(self, rows, x):
        return Leave.apply(linear(x, rows.weight), self.group) + rows.bias


def slice_of(name, tensor, group):
    """What this rank holds of a parameter: a view."""
    rank, n = dist.get_rank(group), dist.get_world_size(group)
    layer = name.split(".")[1]
    if layer in ("query", "key", "value", "up"):
        return tensor.chunk(n)[rank]
    if layer in ("out", "down") and tensor.dim() == 2:
        return tensor.chunk(n, dim=1)[rank]
    return tensor


def cut(model, group, optimizer=None):
    """Keep the slices of this rank, of the parameters and of Adam's state."""
    for name, one in model.named_parameters():
        one.data = slice_of(name, one.data, group).clone()
        for key in ("exp_avg", "exp_avg_sq") if optimizer else ():
            optimizer.state[one][key] = slice_of(name, optimizer.state[one][key], group)
    for layer in model:
        if isinstance(layer, Block):
            layer.__class__, layer.group = SlicedBlock, group
    return model
