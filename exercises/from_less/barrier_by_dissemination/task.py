"""A barrier by dissemination

A rank may return from a barrier when it knows that every rank has called. `marks` has a place for
each rank, with a 1. where this rank knows that. Make all marks 1., in place. Each rank sends at
most log2(n) messages, rounded up.

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
