"""reduce on gloo overwrites the tensors of ranks that are not the destination.

Expected: rank 1 keeps its tensor, since only rank 0 receives the sum. Got: partial sums.

torchrun: 4
bug: 2.13.0, 2.14.1
shows: AssertionError: tensor([
thread: https://github.com/pytorch/pytorch/issues/76527
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
x = torch.ones(4)
dist.reduce(x, dst=0)
assert dist.get_rank() == 0 or x.tolist() == [1] * 4, x
