"""A form: one call of torch.distributed, the ranks' buffers, and what they hold afterwards."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from collectives.semantics import values, wide_values

# Nothing is promised of this buffer after the call.
ANYTHING = object()

Function = Callable[..., Any]  # one of torch.distributed
Plan = dict[str, Any]  # a rank's buffers, by name


@dataclass(frozen=True)
class Buffer:
    """A tensor that a call reads or writes: its data before the call and after it.

    `before` is None for an output: the probe fills that with wrong values. `after` may be ANYTHING.
    """

    before: Any
    after: Any


def sent(data: torch.Tensor) -> Buffer:
    """An input: it must not change."""
    return Buffer(data, data)


def received(data: torch.Tensor) -> Buffer:
    """An output: it must hold `data` afterwards."""
    return Buffer(None, data)


@dataclass(frozen=True)
class Case:
    """A cell as one rank sees it.

    `rank` and `size` are those of the group; `root` and `ranks` are global ranks. `elements` is the
    length; None stands for a short one. `data` is "exact" (values.py), "wide" or "special"
    (wide_values.py); two calls with another `salt` have other wide data.
    """

    rank: int
    ranks: tuple[int, ...]
    root: int
    group: Any
    device: torch.device
    dtype: Any  # a torch.dtype; None where the caller brings no tensor
    op: str | None
    variant: str
    elements: int | None = None
    data: str = "exact"
    salt: int = 0

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def is_root(self) -> bool:
        return self.ranks[self.rank] == self.root

    @property
    def root_in_group(self) -> int:
        return self.ranks.index(self.root)

    @property
    def is_async(self) -> bool:
        return self.variant == "async"

    @property
    def uneven(self) -> bool:
        return self.variant == "uneven"

    @property
    def length(self) -> int:
        """The number of elements: odd, and at two of them each rank's term differs from others'."""
        if self.elements is not None:
            return self.elements
        return {"scalar": 1, "empty": 0}.get(self.variant, 2 * self.size + 1)

    @property
    def shape(self) -> tuple[int, ...]:
        return () if self.variant == "scalar" else (self.length,)

    @property
    def reduce_op(self) -> Any:
        if self.op == "PREMUL_SUM":
            return dist._make_nccl_premul_sum(float(values.FACTOR))
        return getattr(dist.ReduceOp, str(self.op))

    def options(self, root: str | None) -> dict[str, Any]:
        """The group, the root under this name if the call takes one, and the reduction."""
        found = {"group": self.group}
        if root is not None:
            found[root] = self.root
        if self.op is not None:
            found["op"] = self.reduce_op
        return found

    def lengths(self, rank: int | None = None) -> list[int]:
        """How many elements each rank brings, or how many `rank` has for each rank.

        In the uneven variant each rank brings one more than the rank before it; `rank` has nothing
        for one of them, and the total divides by their number: who ignores the lengths is not saved
        by an error.
        """
        if not self.uneven:
            return [self.length] * self.size
        longer, others = self.elements or 0, range(self.size)
        if rank is None:
            return [1 + other + longer for other in others]
        return [2 * ((rank + other) % self.size) + longer for other in others]

    def moved(self, code: int, length: int | None = None) -> torch.Tensor:
        """Data for a call that does not reduce (see `values.moved`)."""
        if self.data == "exact":
            return values.moved(code, self._shape(length), self.dtype)
        return wide_values.moved(code + 1009 * self.salt, self._shape(length), self.dtype)

    def pair(self, source: int, target: int) -> torch.Tensor:
        """What one rank has for another."""
        length = self.lengths(source)[target] if self.uneven else None
        return self.moved(source * self.size + target, length)

    def term(self, rank: int, start: int = 0, length: int | None = None) -> torch.Tensor:
        """What a rank contributes to a reduction (see `values.term`)."""
        shape, op = self._shape(length), self.op or "SUM"
        if self.data == "exact":
            return values.term(rank, self.size, shape, self.dtype, start)
        make = wide_values.term if self.data == "wide" else wide_values.special_term
        return make(rank, self.size, shape, self.dtype, start + 1_000_003 * self.salt, op)

    def reduced(self, start: int = 0, length: int | None = None) -> torch.Tensor:
        """The reduction of all terms.

        If the reduction has no meaning, no result can be right (see probe): then this is any tensor
        of its shape.
        """
        if not values.has_meaning(self.op, self.dtype):
            return self.term(self.rank, start, length)
        shape, op = self._shape(length), self.op or "SUM"
        if self.data == "exact":
            return values.reduced(op, self.size, shape, self.dtype, start)
        make = wide_values.reduced if self.data == "wide" else wide_values.special_reduced
        return make(op, self.size, shape, self.dtype, start + 1_000_003 * self.salt)

    def _shape(self, length: int | None) -> tuple[int, ...]:
        return self.shape if length is None else (length,)


def in_order(root: str | None = None) -> Callable[[Function, Case, Any], Any]:
    """A call that takes the buffers in the plan's order. `root` is its parameter for the root."""

    def call(function: Function, case: Case, buffers: Any) -> Any:
        return function(*vars(buffers).values(), **case.options(root), async_op=case.is_async)

    return call


@dataclass(frozen=True)
class Form:
    """One call. `name` is its path under torch.distributed.

    `plan(case)` returns the rank's buffers by name: a Buffer, a list of them, or any other value,
    which is passed as it is. Under "result" stands what the call must return. `call(function, case,
    buffers)` makes the call; the probe waits for a Work that it returns. `dtypes` is "all", "few"
    (float32 and a few more), "float" (those with gradients) or "none" (the caller brings no
    tensor). `fewest` is the smallest world size.
    """

    collective: str
    name: str
    plan: Callable[[Case], Plan]
    call: Callable[[Function, Case, Any], Any]
    variants: tuple[str, ...] = ()
    fewest: int = 1
    reduces: bool = False
    dtypes: str = "all"
