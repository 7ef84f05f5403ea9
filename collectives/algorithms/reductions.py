"""What the reductions of torch.distributed mean for the executor: which torch function combines."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from collectives.algorithms.tensors import in_blocks

# combine(a, b, out=tensor)
Combine = Callable[..., torch.Tensor]

_SUMS: dict[str, Combine] = {"SUM": torch.add, "PRODUCT": torch.mul}
_ORDERED = _SUMS | {"MIN": torch.minimum, "MAX": torch.maximum}
_BITWISE: dict[str, Combine] = {
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}
NO_AVERAGE = " A quotient is no integer: use SUM in a type that can hold one, then divide."


class Reduction(NamedTuple):
    """`combine(a, b, out=tensor)` combines two parts.

    Each rank's part is first multiplied by `factor`, and the result divided by n if `average`.
    """

    combine: Combine
    factor: float | int | None = None
    average: bool = False

    def before(self, part: torch.Tensor) -> None:
        if self.factor is not None:
            in_blocks(lambda block: block.mul_(self.factor), part)

    def after(self, result: torch.Tensor, n: int) -> None:
        if self.average:
            # subtle: torch divides complex numbers by way of a quotient that it rounds first.
            parts = torch.view_as_real(result) if result.is_complex() else result
            in_blocks(lambda block: block.div_(n), parts)


_OPS = {number.value: name for name, number in dist.ReduceOp.RedOpType.__members__.items()}


# subtle: the hash of a ReduceOp is its number. To compare two of them takes ten times as long.
def op_name(op: dist.ReduceOp) -> str:
    """As in "SUM"."""
    return _OPS[hash(op)]


def reduction(op: dist.ReduceOp | Reduction, dtype: torch.dtype) -> Reduction:
    """Raises ValueError if torch cannot combine this dtype with this op."""
    if isinstance(op, Reduction):
        return op
    name = op_name(op)
    found = _reduction(name, dtype)
    return found._replace(factor=_factor(op, dtype)) if name == "PREMUL_SUM" else found


@functools.cache
def _reduction(name: str, dtype: torch.dtype) -> Reduction:
    known = _known(dtype)
    if not known:
        raise ValueError(
            f"torch cannot add {dtype}, only move it: reduce in a type that it can add."
        )
    if name == "AVG" and (dtype.is_floating_point or dtype.is_complex):
        return Reduction(torch.add, average=True)
    if name == "PREMUL_SUM" and dtype != torch.bool:
        return Reduction(torch.add)
    if name not in known:
        advice = NO_AVERAGE if name == "AVG" else ""
        raise ValueError(f"there is no {name} for {dtype}, only {', '.join(known)}.{advice}")
    return Reduction(known[name])


def _known(dtype: torch.dtype) -> dict[str, Combine]:
    if dtype in (torch.uint16, torch.uint32, torch.uint64) or "float8" in str(dtype):
        return {}
    if dtype.is_complex:
        return _SUMS
    return _ORDERED if dtype.is_floating_point else _ORDERED | _BITWISE


def _factor(op: dist.ReduceOp, dtype: torch.dtype) -> float | int:
    state: Any = op.__getstate__()  # until torch 2.12 nothing else tells the factor
    factor = float(state[1])
    if dtype.is_floating_point or dtype.is_complex:
        return factor
    if not factor.is_integer():
        raise ValueError(
            f"PREMUL_SUM by {factor:g} is no {dtype}: take a whole factor, or a float type."
        )
    return int(factor)
