"""gather on gloo refuses complex numbers, which all_gather and scatter take.

Expected: rank 0 gets both tensors. Got: an error, "Invalid scalar type".

torchrun: 2
bug: 2.13.0, 2.14.1
shows: Invalid scalar type
thread: none found (https://github.com/pytorch/pytorch/issues/89197 has the same error for bools)
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
x = torch.ones(1, dtype=torch.complex64)
out = [torch.zeros_like(x) for _ in range(2)] if dist.get_rank() == 0 else None
dist.gather(x, out, dst=0)
