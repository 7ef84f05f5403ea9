"""Arithmetic and copies in the calling thread.

subtle: from 32,769 elements on torch adds and copies with several threads. If the ranks share
cores, the threads of all of them wait for each other: on a busy machine 20 ms instead of 0.05.
"""

from collections.abc import Callable

import torch

_MOST = 32_768


def in_blocks(function: Callable[..., object], *tensors: torch.Tensor) -> None:
    """`function(*tensors)`, for as many elements at a time as torch handles in one thread."""
    if tensors[0].numel() <= _MOST:
        function(*tensors)
        return
    for blocks in zip(*(tensor.split(_MOST) for tensor in tensors), strict=True):
        function(*blocks)


def copy(place: torch.Tensor, piece: torch.Tensor) -> None:
    if place.data_ptr() != piece.data_ptr():  # else it is there already
        in_blocks(torch.Tensor.copy_, place, piece)


def joined(pieces: list[torch.Tensor]) -> torch.Tensor:
    """New memory with the pieces, one after the other."""
    whole = pieces[0].new_empty(sum(piece.numel() for piece in pieces))
    for place, piece in zip(whole.split([x.numel() for x in pieces]), pieces, strict=True):
        copy(place, piece)
    return whole
