"""On gloo, the Work of reduce_scatter says that it is not completed after wait() has returned.

Expected: is_completed() is True. Got: the right sum, and False.

torchrun: 2
bug: 2.13.0, 2.14.1
shows: AssertionError: the Work is not completed
thread: none found
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
output, inputs = torch.zeros(1), [torch.ones(1), torch.ones(1)]
work = dist.reduce_scatter(output, inputs, async_op=True)
work.wait()
assert output.item() == 2
assert work.is_completed(), "the Work is not completed"
