"""Gloo adds bools as bytes, and leaves the byte 2, which is no bool.

Expected: True + True is True, whose byte is 1. Got: the byte 2.

torchrun: 2
bug: 2.13.0, 2.14.1
shows: tensor([2], dtype=torch.uint8)
thread: none found
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
x = torch.tensor([True])
dist.all_reduce(x)
assert x.view(torch.uint8).item() == 1, x.view(torch.uint8)
