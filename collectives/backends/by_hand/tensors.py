"""What a call needs to know of its tensors, and the words in which it tells other ranks."""

import functools

import torch

from collectives.backends.algorithms import reductions
from collectives.backends.algorithms.reductions import Reduction
from collectives.backends.process_group import op_name


def reduction(op, dtype: torch.dtype) -> Reduction:
    """How to reduce. Raises ValueError if torch cannot reduce this dtype with this op."""
    # Two of PREMUL_SUM are equal, whatever their factors.
    is_known = op_name(op) != "PREMUL_SUM"
    return _known_reduction(op, dtype) if is_known else reductions.reduction(op, dtype)


_known_reduction = functools.cache(reductions.reduction)


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as one row of elements, in the same memory."""
    if tensor.dim() == 1 and not tensor.requires_grad:
        return tensor
    return tensor.detach().view(-1)


def parts(whole: torch.Tensor, size: int) -> list[torch.Tensor]:
    """The part for each rank, in the tensor's own memory."""
    return list(flat(whole).tensor_split(size))


def type_name(tensor: torch.Tensor) -> str:
    """As in "float32"."""
    return _name(tensor.dtype)


@functools.cache
def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def all_kinds(tensors: list[torch.Tensor]) -> str:
    """As in "float32 x 4, int64 x 2"."""
    return ", ".join([f"{type_name(tensor)} x {tensor.numel()}" for tensor in tensors])
