"""An output without a dimension kills the process in reduce_scatter_tensor on gloo.

Expected: the sum, 2, or an error. Got: SIGSEGV.

torchrun: 2
bug: 2.13.0, 2.14.1
shows: Signal 11 (SIGSEGV)
thread: none found
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
out = torch.zeros(())
dist.reduce_scatter_tensor(out, torch.ones(2))
assert out.item() == 2, out
