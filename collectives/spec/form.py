"""What a form is: one call of torch.distributed, the buffers that each rank brings to it, and what they must hold afterwards."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from collectives.spec import values

# Nothing is promised of this buffer after the call.
ANYTHING = object()


@dataclass(frozen=True)
class Buffer:
    """A tensor that a call reads or writes. `before` is None for an output, which is poisoned; `after` may be ANYTHING."""

    before: torch.Tensor | None
    after: Any


def sent(data: torch.Tensor) -> Buffer:
    """An input: it must not change."""
    return Buffer(data, data)


def received(data: torch.Tensor) -> Buffer:
    return Buffer(None, data)


@dataclass(frozen=True)
class Case:
    """A cell as one rank sees it. `rank` and `size` are those of the group; `root` and `ranks` are global ranks."""

    rank: int
    ranks: tuple[int, ...]
    root: int
    group: Any
    device: torch.device
    dtype: torch.dtype | None
    op: str | None
    variant: str

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
        """Odd, and enough places for every rank to stand out at one of them twice."""
        return {"scalar": 1, "empty": 0}.get(self.variant, 2 * self.size + 1)

    @property
    def shape(self) -> tuple[int, ...]:
        return () if self.variant == "scalar" else (self.length,)

    @property
    def reduce_op(self):
        import torch.distributed as dist

        if self.op == "PREMUL_SUM":
            return dist._make_nccl_premul_sum(float(values.FACTOR))
        return getattr(dist.ReduceOp, self.op)

    def lengths(self, rank: int | None = None) -> list[int]:
        """How much each rank brings, or what `rank` has for each: the same for all, or one more from rank to rank."""
        return [
            self.length if not self.uneven else 1 + other + (rank or 0)
            for other in range(self.size)
        ]

    def moved(self, code: int, length: int | None = None) -> torch.Tensor:
        return values.moved(code, self.shape if length is None else (length,), self.dtype)

    def pair(self, source: int, target: int) -> torch.Tensor:
        """What one rank has for another."""
        return self.moved(
            source * self.size + target, self.lengths(source)[target] if self.uneven else None
        )

    def term(self, rank: int, start: int = 0, length: int | None = None) -> torch.Tensor:
        return values.term(
            rank, self.size, self.shape if length is None else (length,), self.dtype, start
        )

    def reduced(self, start: int = 0, length: int | None = None) -> torch.Tensor:
        """The reduction of all terms; where it has no meaning something of its shape, for no answer can be right (see probe)."""
        shape = self.shape if length is None else (length,)
        if not values.has_meaning(self.op, self.dtype):
            return self.term(self.rank, start, length)
        return values.reduced(self.op or "SUM", self.size, shape, self.dtype, start)


@dataclass(frozen=True)
class Form:
    """One call. `name` is its path under torch.distributed, as the older versions have it.

    `newer` is the name that replaces it, for functions of submodules; for others see spec/calls.py.

    `plan(case)` gives the rank's buffers by name (a Buffer, a list of them, or any other value, which is passed as it is), and
    under "result" what the call must return. `call(function, case, buffers)` makes the call; a Work that it returns is waited for.
    `dtypes` is "all", "few" (float32 and a few more), "float" (what has gradients) or "none" (no tensor that the caller sees).
    """

    collective: str
    name: str
    plan: Callable[[Case], dict[str, Any]]
    call: Callable[[Callable, Case, Any], Any]
    newer: str | None = None
    reduces: bool = False
    dtypes: str = "all"
    variants: tuple[str, ...] = ()
    fewest: int = 1
