"""Gloo reads and writes the memory of a tensor that is not contiguous as if it had no gaps.

Expected: each element is doubled. Got: other numbers, without an error.
broadcast, reduce, reduce_scatter and scatter do the same.

torchrun: 2
bug: 2.13.0, 2.14.1
shows: tensor([0., 4., 4.])
thread: https://github.com/pytorch/pytorch/issues/192920
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
x = torch.arange(6.0)[::2]
dist.all_reduce(x)
assert x.tolist() == [0, 4, 8], x
