"""Gloo ignores that a tensor is a negated view, or a conjugated one.

Expected: the imaginary part of the conjugate, -1, is doubled to -2. Got: -1, as before the call.

torchrun: 2
bug: 2.13.0, 2.14.1
shows: tensor([-1.])
thread: none found
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
x = torch.tensor([1 + 1j]).conj().imag  # a view that reads its memory with the other sign
dist.all_reduce(x)
assert x.tolist() == [-2], x
