"""Tensors as memory: which the algorithms take, and arithmetic and copies in the calling thread.

subtle: from 32,769 elements on torch adds and copies with several threads. If the ranks share
cores, the threads of all of them wait for each other: on a busy machine 20 ms instead of 0.05.
"""

from collections.abc import Callable

import torch

_MOST = 32_768


def check_layout(what: str, *tensors: torch.Tensor) -> None:
    """Raises ValueError unless each tensor lies in CPU memory, without gaps, value for value."""
    for tensor in tensors:
        if not tensor.is_cpu or tensor.layout != torch.strided:
            raise ValueError(
                f"{what} takes dense tensors on the CPU, this one is {tensor.layout} on "
                f"{tensor.device}."
            )
        if not tensor.is_contiguous():
            raise ValueError(
                f"{what} takes contiguous tensors, this one has strides {tensor.stride()}: "
                "use contiguous()."
            )
        if tensor.is_neg() or tensor.is_conj():
            bit = "neg" if tensor.is_neg() else "conj"
            raise ValueError(
                f"{what} takes tensors whose values lie in memory as they are, this one is negated "
                f"or conjugated when it is read: use resolve_{bit}()."
            )
        if tensor.numel() and not tensor.data_ptr():
            name = type(tensor).__name__
            raise ValueError(
                f"{what} takes tensors with memory of their own, this one is a {name}."
            )


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as one row of elements, in the same memory."""
    if tensor.dim() == 1 and not tensor.requires_grad:
        return tensor
    return tensor.detach().view(-1)


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
