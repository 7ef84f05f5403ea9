"""Accelerate's join_uneven_inputs does nothing on the CPU, and uneven data hang.

Expected: rank 1 leaves the block when rank 0 has no data left. Got: rank 1 waits for rank 0.

torchrun: 2
bug: 2.13.0, 2.14.1, with Accelerate 1.15.0
shows: Connection closed by peer
thread: none found (https://github.com/huggingface/accelerate/issues/820 is the design)
"""

import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
model = accelerator.prepare(torch.nn.Linear(1, 1))
with accelerator.join_uneven_inputs([model]):
    for _ in range(1 + accelerator.process_index):  # one batch on rank 0, two on rank 1
        model(torch.ones(1, 1)).sum().backward()
