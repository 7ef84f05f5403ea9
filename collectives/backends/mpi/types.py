"""Torch's tensors, dtypes and reductions in MPI's words."""

import functools
import itertools
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.distributed as dist

from collectives.backends.mpi.library import MPI

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
# True + True is True, as in torch (and on NCCL): logical words for all of them.
_LOGICAL = (
    dict.fromkeys(("SUM", "MAX", "BOR"), MPI.LOR)
    | dict.fromkeys(("PRODUCT", "MIN", "BAND"), MPI.LAND)
    | {"BXOR": MPI.LXOR}
)
_HALF = {"SUM": torch.add, "PRODUCT": torch.mul, "MIN": torch.minimum, "MAX": torch.maximum}

_NO_AVG = " A quotient is no integer: use SUM in a type that can hold one, then divide."


def address(tensor: torch.Tensor) -> MPI.buffer:
    """The tensor's own memory, as bytes. Nothing is copied, and nothing keeps the tensor alive."""
    return MPI.buffer.fromaddress(tensor.data_ptr(), tensor.nbytes)


def as_bytes(tensor: torch.Tensor) -> list:
    """The tensor as a message that is only moved: MPI need not know its dtype."""
    return [address(tensor), tensor.nbytes, MPI.BYTE]


def as_pieces(tensors: list[torch.Tensor]) -> list:
    """Many tensors as one message, wherever each of them lies: displacements count from address 0."""
    return [
        MPI.BOTTOM,
        ([tensor.nbytes for tensor in tensors], [tensor.data_ptr() for tensor in tensors]),
        MPI.BYTE,
    ]


def as_rows(tensor: torch.Tensor, splits: list[int], size: int) -> list:
    """The tensor as a message to (or from) each rank: `splits` counts rows; without it all get the same."""
    rows = tensor.shape[0] if tensor.dim() else 1
    if not splits and rows % size:
        raise ValueError(
            f"all_to_all_single: {rows} rows cannot be split evenly among {size} ranks: say how. [mpi]"
        )
    splits = splits or [rows // size] * size
    if len(splits) != size or sum(splits) != rows:
        raise ValueError(
            f"all_to_all_single: splits {splits} do not divide {rows} rows among {size} ranks. [mpi]"
        )
    row = tensor.nbytes // max(1, rows)
    return [address(tensor), [count * row for count in splits], MPI.BYTE]


def in_one_piece(tensors: list[torch.Tensor]) -> tuple[list[torch.Tensor], MPI.buffer]:
    """The memory of many tensors one after the other: their own where they lie so, else a copy; and what keeps it alive."""
    if any(
        one.data_ptr() + one.nbytes != other.data_ptr()
        for one, other in itertools.pairwise(tensors)
    ):
        tensors = [torch.cat([tensor.detach().reshape(-1) for tensor in tensors])]
    return tensors, MPI.buffer.fromaddress(
        tensors[0].data_ptr(), sum(tensor.nbytes for tensor in tensors)
    )


class Reduction(NamedTuple):
    """How MPI is to reduce; `average`: its sum is to be divided by the number of ranks."""

    datatype: MPI.Datatype
    op: MPI.Op
    average: bool = False


@functools.cache
def reduction(op: dist.ReduceOp, dtype: torch.dtype) -> Reduction:
    """ValueError for what MPI cannot reduce."""
    return _reduction(
        next(name for name, known in dist.ReduceOp.RedOpType.__members__.items() if op == known),
        dtype,
    )


def _reduction(name: str, dtype: torch.dtype) -> Reduction:
    number = dtype.is_floating_point or dtype.is_complex
    if name == "AVG" and number:
        return _reduction("SUM", dtype)._replace(average=True)
    if dtype in (torch.float16, torch.bfloat16):
        datatype, known = (
            MPI.INT16_T,
            _ORDERED,
        )  # MPI carries two bytes each, torch does the arithmetic
    elif dtype not in _TYPES:
        raise ValueError(f"mpi cannot reduce {dtype}, it only moves it: reduce in float32.")
    else:
        datatype = _TYPES[dtype]
        known = (
            _LOGICAL
            if dtype == torch.bool
            else _SUMS
            if dtype.is_complex
            else _ORDERED
            if number
            else _ORDERED | _BITWISE
        )
    if name not in known:
        raise ValueError(
            f"mpi has no {name} for {dtype}, only {', '.join(known)}."
            + (_NO_AVG if name == "AVG" else "")
        )
    return Reduction(
        datatype, _half(dtype, _HALF[name]) if datatype == MPI.INT16_T and number else known[name]
    )


def _half(dtype: torch.dtype, combine: Callable) -> MPI.Op:
    """Not every MPI knows 16-bit floating point, so torch combines; each partial result is rounded to 16 bits."""

    def reduce(given, result, _):
        given, result = (torch.frombuffer(memory, dtype=dtype) for memory in (given, result))
        combine(given, result, out=result)

    return MPI.Op.Create(reduce, commute=True)
