"""The arguments of one call as plain data: tensors by kind, sizes as int, reductions by name."""

import contextlib
import functools
import operator
from typing import Any

import torch
from torch.distributed import distributed_c10d as c10d

from ..semantics.calls import CallSpec, Layout
from .call import TensorKind


def buffer_tensors(spec: CallSpec, given: dict) -> list[torch.Tensor]:
    """The tensors that the call was given, in the order of torch's parameters."""
    found: list[torch.Tensor] = []
    for buffer in spec.buffers:
        _collect(given.get(buffer.parameter), found)
    return found


def _collect(value, found: list[torch.Tensor]) -> None:
    if isinstance(value, torch.Tensor):
        found.append(value)
    elif isinstance(value, list | tuple):
        for element in value:
            _collect(element, found)


def buffer_kinds(spec: CallSpec, given: dict) -> tuple[TensorKind, ...]:
    """Of each tensor that the call was given; one for each list of objects.

    Objects are counted only where every rank must pass the same number of them. Their types do not
    matter: each rank may pass any.
    """
    if not spec.objects:
        return tuple(_kind(tensor.dtype, tensor.shape) for tensor in buffer_tensors(spec, given))
    return tuple(
        TensorKind("object", (len(given[buffer.parameter]),))
        for buffer in spec.buffers
        if buffer.layout is Layout.SEVERAL and buffer.parameter in given
    )


@functools.lru_cache(10_000)
def _kind(dtype: torch.dtype, shape: torch.Size) -> TensorKind:
    return TensorKind(str(dtype).removeprefix("torch."), tuple(shape))


def signature(value):
    """Two arguments with the same signature ask for the same."""
    if isinstance(value, torch.Tensor):
        try:
            return value.dtype, value.shape, value.is_contiguous()
        except RuntimeError:  # a sparse tensor of some kind
            return value.dtype, value.shape
    if isinstance(value, list | tuple):
        return tuple(map(signature, value))
    return value


def plain_number(value):
    """A number, or a list of numbers, as Python's own int: torch also takes numpy's and tensors."""
    if value is None or type(value) is int:
        return value
    try:
        return operator.index(value)
    except TypeError:  # it is a list, or an array
        return [plain_number(element) for element in value]


def op_name(op) -> str:
    name = getattr(op, "name", None)  # a ReduceOp with a factor has none
    return name or next(
        (name for name, known in c10d.ReduceOp.RedOpType.__members__.items() if op == known),
        str(op),
    )


def splits(given: dict) -> tuple:
    """Of all_to_all_single: the sizes of the output's pieces and of the input's; None if equal."""
    both = (given.get(word) for word in ("output_split_sizes", "input_split_sizes"))
    return tuple(tuple(sizes) if sizes else None for sizes in both)


def served_by(group, spec: CallSpec, given: dict) -> tuple[str, str, bool]:
    """The backend, the type of the first tensor's device, and whether a single tensor has gaps.

    Texts are empty where there is no tensor, or where torch does not say.
    """
    tensors = buffer_tensors(spec, given)
    if not tensors:
        return "", "", False
    device = tensors[0].device
    # Tensors in a list do not count: torch copies them.
    single = [given.get(buffer.parameter) for buffer in spec.buffers]
    gaps = any(_has_gaps(tensor) for tensor in single if isinstance(tensor, torch.Tensor))
    with contextlib.suppress(Exception):  # a backend of another kind may not know its name
        found: Any = group or c10d.GroupMember.WORLD
        return found._get_backend(device).name(), device.type, gaps
    return "", device.type, gaps


def _has_gaps(tensor: torch.Tensor) -> bool:
    """Whether its elements do not fill the memory between the first and the last of them."""
    # torch makes a like tensor with the same strides, transposed or not, only if there are no gaps.
    return (
        tensor.layout is torch.strided
        and torch.empty_like(tensor, device="meta").stride() != tensor.stride()
    )
