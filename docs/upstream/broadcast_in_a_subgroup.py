"""The gradient of torch.distributed.nn.functional.broadcast is lost in a group without rank 0.

Expected: rank 1, the root of the group of ranks 1 and 2, gets the sum of two gradients, 2.
Got: an error, or a gradient of zero.

torchrun: 3
bug: 2.13.0
shows: AssertionError: tensor([
cured: 2.14.1
thread: https://github.com/pytorch/pytorch/issues/130515
"""

import torch
import torch.distributed as dist
from torch.distributed.nn.functional import broadcast

dist.init_process_group("gloo")
group = dist.new_group([1, 2])
if dist.get_rank() > 0:
    x = torch.ones(1, requires_grad=True)
    broadcast(x, src=1, group=group).sum().backward()
    assert x.grad.item() == (2 if dist.get_rank() == 1 else 0), x.grad
dist.destroy_process_group()
