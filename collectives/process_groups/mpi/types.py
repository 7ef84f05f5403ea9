"""torch's tensors, dtypes and reductions as MPI's messages, datatypes and operations."""

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from collectives.algorithms.reductions import NO_AVERAGE, op_name
from collectives.process_groups.mpi.library import MPI

_TYPES = {
    torch.uint8: MPI.UINT8_T,
    torch.uint16: MPI.UINT16_T,
    torch.uint32: MPI.UINT32_T,
    torch.uint64: MPI.UINT64_T,
    torch.int8: MPI.INT8_T,
    torch.int16: MPI.INT16_T,
    torch.int32: MPI.INT32_T,
    torch.int64: MPI.INT64_T,
    torch.float32: MPI.FLOAT,
    torch.float64: MPI.DOUBLE,
    torch.complex64: MPI.C_FLOAT_COMPLEX,
    torch.complex128: MPI.C_DOUBLE_COMPLEX,
    torch.bool: MPI.C_BOOL,
}
_SUMS = {"SUM": MPI.SUM, "PRODUCT": MPI.PROD}
_ORDERED = _SUMS | {"MIN": MPI.MIN, "MAX": MPI.MAX}
_BITWISE = {"BAND": MPI.BAND, "BOR": MPI.BOR, "BXOR": MPI.BXOR}
# True + True is True, as in torch and on NCCL, so bool uses the logical operations.
_LOGICAL = (
    dict.fromkeys(("SUM", "MAX", "BOR"), MPI.LOR)
    | dict.fromkeys(("PRODUCT", "MIN", "BAND"), MPI.LAND)
    | {"BXOR": MPI.LXOR}
)
_HALF: dict[str, Callable[..., Any]] = {
    "SUM": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
}


def address(tensor: torch.Tensor) -> MPI.buffer:
    """The tensor's own memory, as bytes. Nothing is copied, and nothing keeps the tensor alive."""
    return MPI.buffer.fromaddress(tensor.data_ptr(), tensor.nbytes)


def as_bytes(tensor: torch.Tensor) -> list[Any]:
    """The tensor as a message of bytes: MPI does not need its dtype to move it."""
    return [address(tensor), tensor.nbytes, MPI.BYTE]


def as_pieces(tensors: list[torch.Tensor]) -> list[Any]:
    """Several tensors as one message. Displacements count from address 0, so nothing is copied."""
    return [
        MPI.BOTTOM,
        ([tensor.nbytes for tensor in tensors], [tensor.data_ptr() for tensor in tensors]),
        MPI.BYTE,
    ]


def as_parts(tensor: torch.Tensor, lengths: list[int]) -> list[Any]:
    """The tensor as a message with a part for each rank: so many elements each."""
    return [address(tensor), [length * tensor.element_size() for length in lengths], MPI.BYTE]


def as_one_block(tensors: list[torch.Tensor]) -> tuple[list[torch.Tensor], MPI.buffer]:
    """The tensors as one block of memory, copied unless they lie one after the other.

    Returns what keeps the memory alive, and the memory.
    """
    if any(
        left.data_ptr() + left.nbytes != right.data_ptr()
        for left, right in itertools.pairwise(tensors)
    ):
        tensors = [torch.cat([tensor.detach().reshape(-1) for tensor in tensors])]
    return tensors, MPI.buffer.fromaddress(
        tensors[0].data_ptr(), sum(tensor.nbytes for tensor in tensors)
    )


class MpiReduction(NamedTuple):
    """How MPI reduces. With `average`, divide its result by the number of ranks."""

    datatype: MPI.Datatype
    op: MPI.Op
    average: bool = False


def reduction(op: dist.ReduceOp, dtype: torch.dtype) -> MpiReduction:
    """Raises ValueError if MPI cannot reduce this dtype with this op."""
    return _reduction(op_name(op), dtype)


@functools.cache
def _reduction(name: str, dtype: torch.dtype) -> MpiReduction:
    if name == "AVG" and (dtype.is_floating_point or dtype.is_complex):
        return _reduction("SUM", dtype)._replace(average=True)
    is_half = dtype in (torch.float16, torch.bfloat16)
    if not is_half and dtype not in _TYPES:
        raise ValueError(f"mpi cannot reduce {dtype}, it only moves it: reduce in float32.")
    known = _ops(dtype)
    if name not in known:
        advice = NO_AVERAGE if name == "AVG" else ""
        raise ValueError(f"mpi has no {name} for {dtype}, only {', '.join(known)}.{advice}")
    if is_half:
        # MPI moves two bytes for each element, and torch does the arithmetic.
        return MpiReduction(MPI.INT16_T, _half(dtype, _HALF[name]))
    return MpiReduction(_TYPES[dtype], known[name])


def _ops(dtype: torch.dtype) -> dict[str, MPI.Op]:
    if dtype == torch.bool:
        return _LOGICAL
    if dtype.is_complex:
        return _SUMS
    return _ORDERED if dtype.is_floating_point else _ORDERED | _BITWISE


def _half(dtype: torch.dtype, combine: Callable[..., Any]) -> MPI.Op:
    """torch combines the values, because not every MPI knows 16-bit floating point.

    Each partial result is rounded to 16 bits.
    """

    def reduce(source: Any, result: Any, _: MPI.Datatype) -> None:
        given, total = (torch.frombuffer(memory, dtype=dtype) for memory in (source, result))
        combine(given, total, out=total)

    return MPI.Op.Create(reduce, commute=True)
