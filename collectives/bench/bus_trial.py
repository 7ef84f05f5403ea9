"""A collective of any size: its buffers, and what they must hold afterwards.

Both are those of the matrix (semantics/forms), only longer. In the in-place form of a call, some of
buffers lie inside others, as in nccl-tests.
"""

import functools
from dataclasses import dataclass
from types import SimpleNamespace

import torch

from collectives.semantics import calls, forms
from collectives.semantics.check import bits
from collectives.semantics.form import ANYTHING, Buffer, Case
from collectives.semantics.probe import complement

# The call that is timed for each collective.
FORMS = {
    "all_reduce": "all_reduce",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "all_gather": "all_gather_single",
    "reduce_scatter": "reduce_scatter_single",
    "all_to_all": "all_to_all_single",
    "gather": "gather",
    "scatter": "scatter",
}

# The calls that take one buffer inside of the other, at the rank's place, as in nccl-tests.
IN_PLACE = {"all_gather": ("input", "output"), "reduce_scatter": ("output", "input")}

# The data repeat after so many elements. It is a prime, so that a piece in the wrong place is
# noticed whatever its length.
_PERIOD = 1009


def missing(collective: str) -> dict[str, str]:
    """Why a collective has no out-of-place or no in-place form, if it has none."""
    name = FORMS[collective]
    if calls.CALLS[name].in_place:
        return {"out-of-place": f"dist.{name} always works in place"}
    if collective not in IN_PLACE:
        return {"in-place": f"dist.{name} has no in-place form"}
    return {}


@dataclass(frozen=True)
class Sized(Case):
    """A case of any length, whose data repeat: they are made as quickly as they are long."""

    count: int

    @property
    def length(self) -> int:
        return self.count

    @functools.cached_property
    def reduce_op(self):
        return super().reduce_op

    def moved(self, code: int, length: int | None = None) -> torch.Tensor:
        return self._repeated(super().moved(code, _PERIOD), 0, length)

    def term(self, rank: int, start: int = 0, length: int | None = None) -> torch.Tensor:
        return self._repeated(super().term(rank, 0, _PERIOD), start, length)

    def reduced(self, start: int = 0, length: int | None = None) -> torch.Tensor:
        return self._repeated(super().reduced(0, _PERIOD), start, length)

    def _repeated(self, period: torch.Tensor, start: int, length: int | None) -> torch.Tensor:
        length, first = self.count if length is None else length, start % _PERIOD
        return period.repeat(-(-(first + length) // _PERIOD))[first : first + length]


class Trial:
    """A call on buffers that are laid out once. Buffers whose names begin with `input` are given;
    the others hold the result."""

    def __init__(self, collective: str, case: Sized, in_place: bool):
        form = forms.FORMS[FORMS[collective]]
        self.plan = form.plan(case)
        tensors = {name: _empty(part, case.device) for name, part in self.plan.items()}
        if in_place and collective in IN_PLACE:
            inner, outer = IN_PLACE[collective]
            tensors[inner] = tensors[outer][case.rank * case.count :][: case.count]
        self.tensors = SimpleNamespace(**tensors)
        self.call = functools.partial(form.call, forms.function(form), case, self.tensors)

    def fill(self) -> None:
        """What a result must hold is not there before the call."""
        for buffer, tensor in self._pairs():
            if buffer.before is None:
                tensor.copy_(complement(buffer.after))
        for buffer, tensor in self._pairs():  # subtle: after the results, which may overlap
            if buffer.before is not None:
                tensor.copy_(buffer.before)

    def wrong(self) -> int:
        """How many elements of the result are not what they must be."""
        found = 0
        for buffer, tensor in self._pairs("input"):
            if buffer.after is not ANYTHING and tensor.numel():
                differs = bits(tensor) != bits(buffer.after)
                found += int(differs.view(-1, tensor.itemsize).any(1).sum())
        return found

    def _pairs(self, without: str | None = None):
        for name, part in self.plan.items():
            if part is not None and not (without and name.startswith(without)):
                tensors = vars(self.tensors)[name]
                several = isinstance(part, list)
                yield from zip(part, tensors, strict=True) if several else [(part, tensors)]


def _empty(part, device):
    if isinstance(part, list):
        return [_empty(one, device) for one in part]
    if not isinstance(part, Buffer):
        return part
    model = part.before if part.after is ANYTHING else part.after
    return torch.empty_like(model, device=device)
