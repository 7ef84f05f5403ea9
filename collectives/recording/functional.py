"""Note the functional collectives, by which DTensor and tensor parallel communicate.

They are functions of `torch.distributed._functional_collectives`, and are noted as the calls of
torch.distributed that they amount to, from when they are called; torch waits for them later. Under
torch.compile they become part of the graph, which makes them without asking Python: then they are
not noted.
"""

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ..semantics.torch_names import FUNCTIONAL
from .call_arguments import TensorFacts

MODULE = "torch.distributed._functional_collectives"


def _broadcast(size: int, x, src, group=None, tag="") -> dict:
    return {"tensor": TensorFacts.of(x), "group_src": src}


def _all_reduce(size: int, x, op, group=None, tag="") -> dict:
    return {"tensor": TensorFacts.of(x), "op": op.upper()}


def _all_gather(size: int, x, dim, group=None, tag="") -> dict:
    return {
        "output_tensor": _resized(x, dim, x.shape[dim] * size),
        "input_tensor": TensorFacts.of(x),
    }


def _reduce_scatter(size: int, x, op, dim, group=None, tag="") -> dict:
    output = _resized(x, dim, x.shape[dim] // size)
    return {"output": output, "input": TensorFacts.of(x), "op": op.upper()}


def _all_to_all(size: int, x, output_splits, input_splits, group=None, tag="") -> dict:
    output = _resized(x, 0, sum(output_splits)) if output_splits else TensorFacts.of(x)
    splits = {"output_split_sizes": output_splits, "input_split_sizes": input_splits}
    return {"output": output, "input": TensorFacts.of(x), **splits}


def _all_reduce_coalesced(size: int, xs, op, group=None, tag="") -> dict:
    return {"tensors": [*map(TensorFacts.of, xs)], "op": op.upper()}


def _all_gather_coalesced(size: int, xs, group=None, tag="") -> dict:
    return {"input_tensor_list": [*map(TensorFacts.of, xs)]}


def _reduce_scatter_coalesced(size: int, xs, op, dims, group=None, tag="") -> dict:
    return {"input_list": [*map(TensorFacts.of, xs)], "op": op.upper()}


# By function, the call that it amounts to, and that call's arguments from those of the function.
# Some have a twin with "_autograd" at the end.
_FUNCTIONS: dict[str, tuple[str, Callable[..., dict]]] = {
    "broadcast": ("broadcast", _broadcast),
    "all_reduce": ("all_reduce", _all_reduce),
    "all_gather_single": ("all_gather_single", _all_gather),
    "reduce_scatter_single": ("reduce_scatter_single", _reduce_scatter),
    "all_to_all_single": ("all_to_all_single", _all_to_all),
    "all_reduce_coalesced": ("all_reduce_coalesced", _all_reduce_coalesced),
    "all_gather_single_coalesced": ("all_gather_coalesced", _all_gather_coalesced),
    "reduce_scatter_single_coalesced": ("reduce_scatter", _reduce_scatter_coalesced),
}


def functions(module: types.ModuleType) -> dict[str, tuple[str, Callable[..., dict]]]:
    """Those that this torch has, by name."""
    found = {}
    for name in (name + end for name in _FUNCTIONS for end in ("", "_autograd")):
        known = _FUNCTIONS[name.removesuffix("_autograd")]
        now, before = (getattr(module, one, None) for one in (name, FUNCTIONAL.get(name, name)))
        if now is not None:
            found[name] = known
        # Where a newer torch has both, the older one warns and calls the newer one.
        if before is not None and inspect.unwrap(now or before) is inspect.unwrap(before):
            found[FUNCTIONAL.get(name, name)] = known
    return found


def wrapped(real: Callable, noting: Callable, module: Any) -> Callable:
    """`noting` is called in place of the function, but not while torch traces it."""
    is_tracing = getattr(module, "_are_we_tracing", lambda: False)

    # subtle: a plain function, which torch.compile can look into. It must not skip this one, as it
    # skips the other wrappers: then a graph would end here.
    @functools.wraps(real)
    def wrapper(*args, **kwargs):
        if torch.compiler.is_compiling() or is_tracing():
            return real(*args, **kwargs)
        return noting(*args, **kwargs)

    return wrapper


def group_of(module: Any, group: Any, tag: str = "") -> Any:
    """The process group that a functional collective is given in one of many ways."""
    if isinstance(group, list):
        group = c10d._resolve_group_name_by_ranks_and_tag(group, tag)
    if not isinstance(group, dist.ProcessGroup | str):
        resolve = getattr(module, "_resolve_group", None) or module._resolve_group_name
        group = resolve(group, tag)
    is_name = isinstance(group, str)
    return c10d._resolve_process_group(group) if is_name else group


def _resized(x: torch.Tensor, dim: int, length: int) -> TensorFacts:
    shape = list(x.shape)
    shape[dim] = length
    return TensorFacts(x.dtype, torch.Size(shape), x.device)
