"""How a call describes its tensors to other ranks."""

import functools

import torch


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
