"""Scatter from sends

Rank `src` has a list of n pieces, and the others have None. Copy piece r into `output` of rank r.

    src 0
    rank  output    pieces              output afterwards
    0     [-7, -7]  [[1, 2], [11, 12]]  [1, 2]
    1     [-7, -7]  None                [11, 12]

You may call send, recv, isend, irecv and batch_isend_irecv, and no collective.
"""

import torch
import torch.distributed as dist


def scatter(output: torch.Tensor, pieces: list[torch.Tensor] | None, src: int) -> None:
    raise NotImplementedError("TODO: about eight lines")
