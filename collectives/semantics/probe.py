"""What runs in each rank of a cell: lay out the buffers, make the call, compare every byte.

Before the call, an output holds the complement of what it must hold afterwards: so a call that does
nothing is wrong at every element. There are guard bytes around every tensor, and in the gaps of a
tensor that is not contiguous; neither they nor the inputs may change. All comparisons are of bits:
a NaN, or a bool that is neither 0 nor 1, cannot hide.
"""

import contextlib
import dis
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from collectives.semantics import forms, values
from collectives.semantics.cell import Cell, DetailedCell
from collectives.semantics.check import Mismatch, bits, kind
from collectives.semantics.form import ANYTHING, Buffer, Case
from collectives.words import printable

# Around each tensor, in bytes: a multiple of every dtype's size.
_GUARD = 64
_GUARD_BYTE = 0x5A

# Values are cut to so many letters: one page shows thousands of them.
_SHOWN = 90
# Of a tensor with more elements than this, so few are shown, from the first that differs.
_LONG, _FEW = 40, 4


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
    try:
        group = group_of(cell)
        if rank not in cell.ranks:
            return None
        call = ProbedCall(cell, case_of(rank, device, cell, group))
    except Exception as error:
        raise RuntimeError(f"the probe itself failed: {first_line(error)}") from error
    with judged(rank, world_size) as verdict:
        call.begin()
        call.complete()
        call.check()
    return verdict.wrong


class ProbedCall:
    """One call in this rank, with its buffers laid out. `begin`, `complete` and `check` it."""

    def __init__(self, cell: Cell, case: Case):
        self.form, self.case = forms.FORMS[cell.name], case
        plan = self.form.plan(case)
        self.expected = plan.pop("result", ANYTHING)
        self.memory = {name: _lay_out(part, case) for name, part in plan.items()}
        self.tensors = SimpleNamespace(
            **{name: _tensors(part) for name, part in self.memory.items()}
        )
        self.result: Any = None

    def refill(self, case: Case) -> None:
        """The next call is of the same tensors, with this case's data."""
        plan = self.form.plan(case)
        self.case, self.expected = case, plan.pop("result", ANYTHING)
        for name, part in plan.items():
            _refill(self.memory[name], part)

    def begin(self) -> Any:
        """Make the call; what it returns, a Work if it is asynchronous."""
        self.result = self.form.call(forms.function(self.form), self.case, self.tensors)
        return self.result

    def complete(self) -> None:
        self.result = _complete(self.result, self.case)

    def check(self) -> None:
        """Raise Mismatch unless everything is as it must be."""
        _check(self.case, self.memory, self.result, self.expected)


def group_of(cell: Cell) -> Any:
    """The group of the cell's ranks. A process makes each group once: all of its ranks must ask."""
    takes_all = cell.ranks == tuple(range(cell.world_size))
    if cell.variant != "subgroup" and takes_all:
        return dist.group.WORLD
    world = dist.group.WORLD
    if (world, cell.ranks) not in _groups:
        _groups[world, cell.ranks] = dist.new_group(list(cell.ranks))
    return _groups[world, cell.ranks]


_groups: dict[Any, Any] = {}


def case_of(rank: int, device: torch.device, cell: Cell, group: Any) -> Case:
    """The cell as this rank sees it."""
    case = Case(
        cell.ranks.index(rank),
        cell.ranks,
        cell.root,
        group,
        device,
        values.DTYPES[cell.dtype] if cell.dtype else None,
        cell.op,
        cell.variant,
    )
    if isinstance(cell, DetailedCell):
        case = replace(case, elements=cell.elements, data=cell.data, salt=cell.salt)
    return case


class Judgement:
    """What was wrong; None if nothing was."""

    wrong: str | None = None


@contextlib.contextmanager
def judged(rank: int, world_size: int) -> Iterator[Judgement]:
    """Inside, a Mismatch is a verdict, and any other error becomes Refused or Bug."""
    verdict = Judgement()
    try:
        yield verdict
    except Mismatch as error:
        verdict.wrong = f"Mismatch: rank {rank}/{world_size}: {error}"
    except Exception as error:
        if line := _bug(error):
            raise Bug(f"{first_line(error)} ({line})") from error
        raise Refused(first_line(error)) from error


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


def first_line(error: Exception) -> str:
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
        # One element behind the guard, the tensor begins where no vector instruction expects it.
        self.offset = 1 if case.variant == "offset" else 0
        # A guard before the tensor, and at least one behind it: a multiple of every dtype's size.
        size = (4 + model.numel() * self.step * model.element_size() // _GUARD) * _GUARD
        self.bytes = torch.full((size,), _GUARD_BYTE, dtype=torch.uint8, device=case.device)
        # Not every tensor: where all ranks store the opposite, moving and adding bytes is right.
        is_output, is_input = buffer.before is None, buffer.before is buffer.after
        is_odd = case.rank % 2 == 1
        is_chosen = is_output or is_odd == is_input
        self.is_lazy = case.variant == "lazy" and is_chosen
        self.tensor = self._view(self.bytes, model)
        self.tensor.copy_(self.held())
        self.equal_nan = case.data == "special"

    def refill(self, buffer: Buffer) -> None:
        self.buffer = buffer
        self.bytes.fill_(_GUARD_BYTE)
        self.tensor.copy_(self.held())

    def _kept(self, got: torch.Tensor, after: torch.Tensor) -> str:
        """What it says about the call if every wrong element is as it was before."""
        held = self.held()
        wrong = (_elements(got) != _elements(after)).any(1)
        if after is self.buffer.before or (_elements(got) != _elements(held)).any(1)[wrong].any():
            return _as_exact_as(got, after)
        if self.buffer.before is None:
            return "; nothing was written there"
        return "; there, this rank still holds its own input"

    def _view(self, memory: torch.Tensor, model: torch.Tensor) -> torch.Tensor:
        """The place of the tensor in `memory`, which is laid out like `self.bytes`."""
        typed = memory.view(model.dtype)
        first = _GUARD // model.element_size() + self.offset
        tensor = typed[first : first + model.numel() * self.step : self.step].view(model.shape)
        if not self.is_lazy:
            return tensor
        return tensor.conj() if tensor.is_complex() else torch._neg_view(tensor)

    def held(self) -> torch.Tensor:
        """What the tensor holds before the call."""
        before, after = self.buffer.before, self.buffer.after
        return complement(after) if before is None else before

    def check(self, name: str) -> None:
        """Raise Mismatch unless the tensor and its guards are as they must be."""
        got = self.tensor.detach().cpu().resolve_conj().resolve_neg()
        after = self.buffer.after
        if after is not ANYTHING:
            what = f"{name}, an input, changed" if self.buffer.before is after else name
            if self.equal_nan:  # the bits of a NaN that was computed are not defined
                after = torch.where(after.isnan() & got.isnan(), got, after)
            try:
                _same(got, after, what)
            except Mismatch as error:
                raise Mismatch(f"{error}{self._kept(got, after)}") from None
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


def _refill(memory: Any, part: Any) -> None:
    if isinstance(part, list):
        for pair in zip(memory, part, strict=True):
            _refill(*pair)
    elif isinstance(part, Buffer):
        memory.refill(part)


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
            raise Mismatch(f"{what}: {_difference(got, expected)}")
    elif isinstance(expected, list) and isinstance(got, list | tuple) and len(got) == len(expected):
        for number, pair in enumerate(zip(got, expected, strict=True)):
            _same(*pair, f"{what}[{number}]")
    elif isinstance(expected, torch.Tensor) or type(got) is not type(expected) or got != expected:
        raise Mismatch(f"{what}: got {_cut(repr(got))}, should be {_cut(repr(expected))}")


def _as_exact_as(got: torch.Tensor, after: torch.Tensor) -> str:
    """The narrower dtype that would be as far off, if the numbers are nearly right."""
    if got.dtype is torch.bool or got.is_complex() or after.numel() < _LONG:
        return ""
    error = ((got.double() - after.double()).abs() / after.double().abs()).nan_to_num(0)
    exact = got != after
    typical = error[exact].median().item() if exact.any() else 0.0
    own = torch.finfo(got.dtype).eps if got.is_floating_point() else 0.0
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        eps = torch.finfo(dtype).eps
        if own < eps and eps / 64 < typical <= eps:
            return f"; that is as exact as {str(dtype).removeprefix('torch.')}"
    return ""


def _elements(tensor: torch.Tensor) -> torch.Tensor:
    """A row of bytes for each element."""
    return bits(tensor).view(tensor.numel(), -1)


def _difference(got: torch.Tensor, expected: torch.Tensor) -> str:
    """What a tensor is and should be; of a long one, how many elements differ, and from where."""
    where = ""
    if got.numel() > _LONG:
        places = (_elements(got) != _elements(expected)).any(1).nonzero().flatten()
        first, last = int(places[0]), int(places[-1])
        where = (
            f"{len(places):,} of {got.numel():,} elements differ, from element {first:,} to "
            f"{last:,}, "
        )
        got, expected = (tensor.flatten()[first : first + _FEW] for tensor in (got, expected))
    texts = [_show(got), _show(expected)]
    if texts[0] == texts[1]:
        texts = [f"the bytes {_show(bits(tensor))}" for tensor in (got, expected)]
    return f"{where}got {texts[0]}, should be {texts[1]}"


def complement(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that differs at every element, and in which every bool is valid."""
    if tensor.dtype is torch.bool:
        return ~tensor
    return (~bits(tensor)).view(tensor.dtype).view(tensor.shape)


def _show(tensor: torch.Tensor) -> str:
    return _cut(str(tensor.detach().cpu().tolist()))


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
