"""All_to_all, pair by pair

Rank r has n pieces, one for each rank. Return the n pieces for rank r, in the order of the ranks
that they come from.

    rank  pieces                returned
    0     [[1, 2], [3, 4]]      [[1, 2], [11, 12]]
    1     [[11, 12], [13, 14]]  [[3, 4], [13, 14]]

You may call send, recv, isend, irecv and batch_isend_irecv, and no collective.
"""

import torch
import torch.distributed as dist


def all_to_all(pieces: list[torch.Tensor]) -> list[torch.Tensor]:
    raise NotImplementedError("TODO: about ten lines")
