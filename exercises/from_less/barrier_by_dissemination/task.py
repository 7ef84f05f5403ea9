"""A barrier by dissemination

A rank may return from a barrier only when it knows that every rank has called. In `marks` each rank
has a place, which is 1. once this rank knows that. Set all marks to 1., in place. Each rank may
send at most log2(n) messages, rounded up.

    rank  marks         marks afterwards
    0     [1., 0., 0.]  [1., 1., 1.]
    1     [0., 1., 0.]  [1., 1., 1.]
    2     [0., 0., 1.]  [1., 1., 1.]

You may call send, recv, isend, irecv and batch_isend_irecv, and no collective.
"""

import torch
import torch.distributed as dist


def barrier(marks: torch.Tensor) -> None:
    raise NotImplementedError("TODO: about ten lines")
