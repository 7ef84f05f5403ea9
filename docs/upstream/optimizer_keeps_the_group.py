"""An optimizer that is made after the group keeps the group until the process ends.

Expected: destroy_process_group() ends the group, and its threads. Got: functions of
torch.distributed.nn, which the optimizer imports then, hold the group as a default argument. gloo's
threads outlive the interpreter, and now and then abort the process at its exit.

torchrun: 1
bug: 2.13.0, 2.14.1
shows: more references than before
thread: https://github.com/pytorch/pytorch/issues/190489 (the same abort; not this cause)
"""

import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
before = sys.getrefcount(dist.group.WORLD)
torch.optim.SGD([torch.zeros(1, requires_grad=True)])
assert sys.getrefcount(dist.group.WORLD) == before, "more references than before"
