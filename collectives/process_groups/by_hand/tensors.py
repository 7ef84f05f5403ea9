"""What a call needs to know of its tensors, and how it describes them to other ranks."""

import functools

import torch
import torch.distributed as dist

from collectives.algorithms import reductions
from collectives.algorithms.layout import flat
from collectives.algorithms.reductions import Reduction
from collectives.process_groups.process_group import op_name


def find_reduction(op: dist.ReduceOp, dtype: torch.dtype) -> Reduction:
    """Raises ValueError if torch cannot reduce this dtype with this op."""
    # Two of PREMUL_SUM are equal, whatever their factors.
    is_known = op_name(op) != "PREMUL_SUM"
    return _known_reduction(op, dtype) if is_known else reductions.reduction(op, dtype)


_known_reduction = functools.cache(reductions.reduction)


def parts(whole: torch.Tensor, size: int) -> list[torch.Tensor]:
    """The part for each rank, in the tensor's own memory."""
    return list(flat(whole).tensor_split(size))


@functools.cache
def type_name(dtype: torch.dtype) -> str:
    """As in "float32"."""
    return str(dtype).removeprefix("torch.")


def describe(*tensors: torch.Tensor) -> str:
    """As in "float32 x 4, int64 x 2"."""
    return ", ".join([_describe(tensor.dtype, tensor.numel()) for tensor in tensors])


@functools.lru_cache(1024)
def _describe(dtype: torch.dtype, numel: int) -> str:
    return f"{type_name(dtype)} x {numel}"
