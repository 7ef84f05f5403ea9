"""What runs in each rank of a cell: lay out the buffers, make the call, and look at every byte that it could have touched.

Outputs are poisoned with the complement of what they must come to hold, so that a call that does nothing is wrong at every element.
Guard bytes lie around every tensor, and in the gaps of one that is not contiguous: they must not change, and neither must inputs.
All comparisons are of bits: a NaN, or a bool that is neither 0 nor 1, cannot hide.
"""

import importlib
import os
import sys
from types import SimpleNamespace

import torch
import torch.distributed as dist

from collectives.spec import forms, values
from collectives.spec.cell import Cell
from collectives.spec.check import Mismatch
from collectives.spec.form import ANYTHING, Buffer, Case

# Around each tensor, in bytes: a multiple of every dtype's size.
_GUARD = 64
_GUARD_BYTE = 0x5A

# Longer values are cut: thousands of answers go into one page.
_SHOWN = 90


class Refused(Exception):
    """The call raised: a clear error, which the caller's `detail` repeats."""


class RankSetup:
    """Travels to a rank with its cell: on arrival the rank falls silent, and imports the modules that bring a backend."""

    def __init__(self, modules: tuple[str, ...] = ()):
        self.modules = modules

    def __reduce__(self):
        return _set_up, (self.modules,)


def _set_up(modules: tuple[str, ...]) -> RankSetup:
    """A probe may print megabytes, in C++ too: nobody reads them."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)
    import_modules(modules)
    return RankSetup(modules)


def import_modules(modules: tuple[str, ...]) -> None:
    """Import by name, from the current folder too, which the `collectives` command does not look into by itself."""
    if modules and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    for module in modules:
        importlib.import_module(module)


def probe(
    rank: int, world_size: int, device: torch.device, cell: Cell, setup: RankSetup
) -> str | None:
    """Try a cell in this rank. None where it works, else what was wrong; raises Refused where the call raised."""
    form = forms.FORMS[cell.name]
    group = dist.group.WORLD
    try:
        if cell.variant == "subgroup":
            group = dist.new_group(list(cell.ranks))
        if rank not in cell.ranks:
            return None
        dtype = values.DTYPES[cell.dtype] if cell.dtype else None
        case = Case(
            cell.ranks.index(rank),
            cell.ranks,
            cell.root,
            group,
            device,
            dtype,
            cell.op,
            cell.variant,
        )
        plan = form.plan(case)
        expected = plan.pop("result", ANYTHING)
        memory = {name: _lay_out(part, case) for name, part in plan.items()}
        tensors = SimpleNamespace(**{name: _tensors(part) for name, part in memory.items()})
    except Exception as error:
        raise RuntimeError(f"the probe itself failed: {_first_line(error)}") from error
    try:
        result = _complete(form.call(forms.function(form), case, tensors), case)
        _judge(case, memory, result, expected)
    except Mismatch as error:
        return f"Mismatch: rank {rank}/{world_size}: {error}"
    except Exception as error:
        raise Refused(_first_line(error)) from error
    return None


def _complete(result, case: Case):
    """Wait for what is under way; return what the call returned, less its Work."""
    if case.is_async and result is None:
        raise Mismatch("async_op=True returned no Work to wait for")
    if hasattr(result, "wait") and not isinstance(result, torch.Tensor):
        result.wait()
        result = None
    if case.device.type == "cuda":
        torch.cuda.synchronize()
    return result


def _first_line(error: Exception) -> str:
    """Type and first line; torch puts the number of a reduction into some messages as a control character."""
    text = str(error).strip()
    line = (
        "".join(
            letter if letter.isprintable() else repr(letter)[1:-1]
            for letter in text.splitlines()[0]
        )
        if text
        else ""
    )
    return f"{type(error).__name__}: {line}" if line else type(error).__name__


class _Memory:
    """A tensor with guards around it, as it is before the call, and as it must be afterwards."""

    def __init__(self, buffer: Buffer, case: Case):
        self.buffer = buffer
        model = buffer.before if buffer.after is ANYTHING else buffer.after
        self.step = 2 if case.variant == "noncontiguous" else 1
        size = _GUARD + model.numel() * self.step * model.element_size()
        self.bytes = torch.full(
            (-(-size // _GUARD) * _GUARD + _GUARD,),
            _GUARD_BYTE,
            dtype=torch.uint8,
            device=case.device,
        )
        self.tensor = self._view(self.bytes, model)
        self.tensor.copy_(_complement(buffer.after) if buffer.before is None else buffer.before)

    def _view(self, memory: torch.Tensor, model: torch.Tensor) -> torch.Tensor:
        typed = memory.view(model.dtype)
        first = _GUARD // model.element_size()
        return typed[first : first + model.numel() * self.step : self.step].view(model.shape)

    def judge(self, name: str, case: Case) -> None:
        got = self.tensor.detach().cpu()
        if self.buffer.after is not ANYTHING:
            what = f"{name}, an input, changed" if self.buffer.before is self.buffer.after else name
            _same(got, self.buffer.after, what)
        should = torch.full_like(self.bytes, _GUARD_BYTE, device="cpu")
        self._view(should, got).copy_(got)
        changed = (self.bytes.cpu() != should).nonzero()
        if len(changed):
            place = changed[0].item() - _GUARD
            raise Mismatch(
                f"{name}: the call wrote {len(changed)} bytes outside of the tensor, the first at byte {place}"
            )


def _lay_out(part, case: Case):
    if isinstance(part, list):
        return [_lay_out(one, case) for one in part]
    return _Memory(part, case) if isinstance(part, Buffer) else part


def _tensors(part):
    if isinstance(part, list):
        return [_tensors(one) for one in part]
    return part.tensor if isinstance(part, _Memory) else part


def _judge(case: Case, memory: dict, result, expected) -> None:
    """Raise Mismatch unless everything is as it must be."""
    if case.op and not values.has_meaning(case.op, case.dtype):
        raise Mismatch(f"{case.op} has no meaning for {_name(case.dtype)}, and was not refused")
    for name, part in memory.items():
        for number, one in enumerate(part if isinstance(part, list) else [part]):
            if isinstance(one, _Memory):
                one.judge(f"{name}[{number}]" if isinstance(part, list) else name, case)
    _same(result, expected, "returned")


def _same(got, expected, what: str) -> None:
    if expected is ANYTHING:
        return
    if isinstance(expected, torch.Tensor) and isinstance(got, torch.Tensor):
        facts = [(_name(one.dtype), list(one.shape)) for one in (got, expected)]
        if facts[0] != facts[1]:
            raise Mismatch(
                f"{what}: got {facts[0][0]}{facts[0][1]}, should be {facts[1][0]}{facts[1][1]}"
            )
        if not torch.equal(_bits(got), _bits(expected)):
            show = (
                _show
                if _show(got) != _show(expected)
                else lambda tensor: f"the bytes {_show(_bits(tensor))}"
            )
            raise Mismatch(f"{what}: got {show(got)}, should be {show(expected)}")
    elif isinstance(expected, list) and isinstance(got, list | tuple) and len(got) == len(expected):
        for number, (one, other) in enumerate(zip(got, expected, strict=True)):
            _same(one, other, f"{what}[{number}]")
    elif isinstance(expected, torch.Tensor) or type(got) is not type(expected) or got != expected:
        raise Mismatch(f"{what}: got {_cut(repr(got))}, should be {_cut(repr(expected))}")


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8)


def _complement(tensor: torch.Tensor) -> torch.Tensor:
    """Wrong at every element, and no other kind of bool."""
    if tensor.dtype is torch.bool:
        return ~tensor
    return (~_bits(tensor)).view(tensor.dtype).view(tensor.shape)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _show(tensor: torch.Tensor) -> str:
    return _cut(str(tensor.detach().cpu().tolist()))


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
