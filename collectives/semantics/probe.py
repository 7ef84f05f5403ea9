"""What runs in each rank of a cell: lay out the buffers, make the call, compare every byte.

Before the call, an output holds the complement of what it must hold afterwards: so a call that does
nothing is wrong at every element. There are guard bytes around every tensor, and in the gaps of a
tensor that is not contiguous; neither they nor the inputs may change. All comparisons are of bits:
a NaN, or a bool that is neither 0 nor 1, cannot hide.
"""

import dis
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from collectives.semantics import forms, values
from collectives.semantics.cell import Cell
from collectives.semantics.check import Mismatch, bits, kind
from collectives.semantics.form import ANYTHING, Buffer, Case
from collectives.words import printable

# Around each tensor, in bytes: a multiple of every dtype's size.
_GUARD = 64
_GUARD_BYTE = 0x5A

# Values are cut to so many letters: one page shows thousands of them.
_SHOWN = 90


# What Python raises where code is wrong.
_BUGS = (TypeError, AttributeError, NameError, IndexError, ZeroDivisionError)
# An error that comes from these files is torch's: of wrong arguments, or of a method that the
# backend lacks or that takes others.
_NOT_THE_BACKEND = tuple(f"{Path(file).parent}{os.sep}" for file in (torch.__file__, __file__))


class Refused(Exception):
    """The call raised. The message has the type and the first line of its error."""


class Bug(Exception):
    """The backend's own code is wrong. The message names its line after the error."""


class Silence:
    """An argument for a rank: it prints nothing from when it arrives there.

    That is before its group starts.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return _silence, ()


def _silence() -> Silence:
    # A call may print megabytes, in C++ too: nobody reads them.
    null = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(null, descriptor)
    os.close(null)
    return Silence()


def probe(
    rank: int, world_size: int, device: torch.device, cell: Cell, silence: Silence
) -> str | None:
    """Try a cell in this rank: None if it works, else what was wrong.

    Refused or Bug: the call raised. RuntimeError: the probe itself failed.
    """
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
        _check(case, memory, result, expected)
    except Mismatch as error:
        return f"Mismatch: rank {rank}/{world_size}: {error}"
    except Exception as error:
        if line := _bug(error):
            raise Bug(f"{_first_line(error)} ({line})") from error
        raise Refused(_first_line(error)) from error
    return None


def _bug(error: Exception) -> str:
    """The line of the backend that raised the error without meaning to; empty if there is none."""
    at = error.__traceback__
    while at and at.tb_next:
        at = at.tb_next
    if at is None or not isinstance(error, _BUGS):
        return ""
    code = at.tb_frame.f_code
    is_meant = code.co_code[at.tb_lasti] == dis.opmap["RAISE_VARARGS"]  # a `raise` in the source
    if is_meant or code.co_filename.startswith(_NOT_THE_BACKEND):
        return ""
    return f"{Path(code.co_filename).name}, line {at.tb_lineno}"


def _complete(result: Any, case: Case) -> Any:
    """Wait until the call is complete; return its result, or None if that is a Work."""
    if case.is_async and result is None:
        raise Mismatch("async_op=True returned no Work to wait for")
    if hasattr(result, "wait") and not isinstance(result, torch.Tensor):
        result.wait()
        result = None
    if case.device.type == "cuda":
        torch.cuda.synchronize()
    return result


def _first_line(error: Exception) -> str:
    """The type and the first line of an error."""
    kind, text = type(error).__name__, str(error).strip()
    if not text:
        return kind
    # torch puts the number of a reduction into some messages as a control character.
    return f"{kind}: {printable(text.splitlines()[0])}"


class _Memory:
    """A tensor for the call, with guard bytes around it."""

    def __init__(self, buffer: Buffer, case: Case):
        self.buffer = buffer
        # The tensor gets the dtype and the shape of `model`.
        model: torch.Tensor = buffer.before if buffer.after is ANYTHING else buffer.after
        self.step = 2 if case.variant == "noncontiguous" else 1
        # A guard before the tensor, and at least one behind it: a multiple of every dtype's size.
        size = (3 + model.numel() * self.step * model.element_size() // _GUARD) * _GUARD
        self.bytes = torch.full((size,), _GUARD_BYTE, dtype=torch.uint8, device=case.device)
        # Not every tensor: where all ranks store the opposite, moving and adding bytes is right.
        is_output, is_input = buffer.before is None, buffer.before is buffer.after
        is_odd = case.rank % 2 == 1
        is_chosen = is_output or is_odd == is_input
        self.is_lazy = case.variant == "lazy" and is_chosen
        self.tensor = self._view(self.bytes, model)
        self.tensor.copy_(complement(buffer.after) if buffer.before is None else buffer.before)

    def _view(self, memory: torch.Tensor, model: torch.Tensor) -> torch.Tensor:
        """The place of the tensor in `memory`, which is laid out like `self.bytes`."""
        typed = memory.view(model.dtype)
        first = _GUARD // model.element_size()
        tensor = typed[first : first + model.numel() * self.step : self.step].view(model.shape)
        if not self.is_lazy:
            return tensor
        return tensor.conj() if tensor.is_complex() else torch._neg_view(tensor)

    def check(self, name: str) -> None:
        """Raise Mismatch unless the tensor and its guards are as they must be."""
        got = self.tensor.detach().cpu().resolve_conj().resolve_neg()
        if self.buffer.after is not ANYTHING:
            what = f"{name}, an input, changed" if self.buffer.before is self.buffer.after else name
            _same(got, self.buffer.after, what)
        should = torch.full_like(self.bytes, _GUARD_BYTE, device="cpu")
        self._view(should, got).copy_(got)
        changed = (self.bytes.cpu() != should).nonzero()
        if len(changed):
            place = changed[0].item() - _GUARD
            raise Mismatch(
                f"{name}: the call wrote {len(changed)} bytes outside of the tensor, "
                f"the first at byte {place}"
            )


def _lay_out(part: Any, case: Case) -> Any:
    if isinstance(part, list):
        return [_lay_out(item, case) for item in part]
    return _Memory(part, case) if isinstance(part, Buffer) else part


def _tensors(part: Any) -> Any:
    if isinstance(part, list):
        return [_tensors(item) for item in part]
    return part.tensor if isinstance(part, _Memory) else part


def _check(case: Case, memory: dict[str, Any], result: Any, expected: Any) -> None:
    """Raise Mismatch unless everything is as it must be."""
    if case.op and not values.has_meaning(case.op, case.dtype):
        dtype = str(case.dtype).removeprefix("torch.")
        raise Mismatch(f"{case.op} has no meaning for {dtype}, and was not refused")
    for name, part in memory.items():
        _check_memory(name, part)
    _same(result, expected, "returned")


def _check_memory(name: str, part: Any) -> None:
    if isinstance(part, _Memory):
        part.check(name)
    elif isinstance(part, list):
        for number, item in enumerate(part):
            _check_memory(f"{name}[{number}]", item)


def _same(got: Any, expected: Any, what: str) -> None:
    """Raise Mismatch unless both are the same, tensors bit by bit."""
    if expected is ANYTHING:
        return
    if isinstance(expected, torch.Tensor) and isinstance(got, torch.Tensor):
        if kind(got) != kind(expected):
            raise Mismatch(f"{what}: got {kind(got)}, should be {kind(expected)}")
        if not torch.equal(bits(got), bits(expected)):
            texts = [_show(got), _show(expected)]
            if texts[0] == texts[1]:
                texts = [f"the bytes {_show(bits(tensor))}" for tensor in (got, expected)]
            raise Mismatch(f"{what}: got {texts[0]}, should be {texts[1]}")
    elif isinstance(expected, list) and isinstance(got, list | tuple) and len(got) == len(expected):
        for number, pair in enumerate(zip(got, expected, strict=True)):
            _same(*pair, f"{what}[{number}]")
    elif isinstance(expected, torch.Tensor) or type(got) is not type(expected) or got != expected:
        raise Mismatch(f"{what}: got {_cut(repr(got))}, should be {_cut(repr(expected))}")


def complement(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that differs at every element, and in which every bool is valid."""
    if tensor.dtype is torch.bool:
        return ~tensor
    return (~bits(tensor)).view(tensor.dtype).view(tensor.shape)


def _show(tensor: torch.Tensor) -> str:
    return _cut(str(tensor.detach().cpu().tolist()))


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
