"""Which questions a backend is asked."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from collectives.backends.claims import Claim
from collectives.matrix import selection
from collectives.semantics import values, wide_values
from collectives.semantics.cell import Cell, DetailedCell
from collectives.semantics.forms import FORMS, called
from collectives.semantics.probe import Silence, probe
from collectives.verify import at_once, failure, in_rank, rounding, stated
from collectives.verify.question import Question

# The calls that move tensors, each by the form that is asked about sizes, widths and groups.
REDUCING = ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_single")
MOVING = (
    *("broadcast", "all_gather", "all_gather_single", "gather", "scatter"),
    *("all_to_all", "all_to_all_single", "send", "isend", "batch_isend_irecv"),
)
COALESCED = ("all_reduce_coalesced", "all_gather_coalesced")

# Lengths: none, one, what the matrix asks (None), more than 2**16, and more than 2**22 elements.
LENGTHS = (0, 1, None, 65_537, 4 * 2**20 + 1)
SHORT = LENGTHS[:3]
# Of the longest messages a rank of a world of 4 would hold gigabytes.
_LONGEST = 2**20
# Long messages hold what a narrower dtype cannot: what is compressed may be so from a length on.
_LONG = 1000

# What the long messages are asked about besides: how they lie in memory, and how they are called.
LONG_VARIANTS = ("async", "noncontiguous", "offset", "uneven")


@dataclass(frozen=True)
class Plan:
    """What is asked of which backend. `quick` leaves out failures and what is long."""

    backend: str
    device: str = "cpu"
    quick: bool = False
    world_sizes: tuple[int, ...] = (2, 4)
    sizes: tuple[int, ...] = ()
    threads: bool = False
    lesson_sizes: tuple[int, ...] = (1, 2, 3, 4, 5)
    claims: tuple[Claim, ...] = ()

    def questions(self) -> Iterator[Question]:
        yield from self._group()
        yield from self._calls()
        yield from self._sizes()
        yield from self._widths()
        yield from self._groups()
        yield from at_once.questions(self.backend, self.device, self.world_sizes, self.threads)
        if not self.quick:
            yield from failure.questions(self.backend, self.device)
            yield from stated.questions(self.backend, self.device)

    def _group(self) -> Iterator[Question]:
        for size in self.world_sizes:
            members = [tuple(range(size))] + ([(1, size - 1)] if size > 2 else [])
            for one in members:
                run = functools.partial(in_rank.group_facts, members=one)
                cell = self.detailed("barrier", None, size, members=one)
                case, program = f"ranks {list(one)}", ("group", cell)
                yield Question("group", "init_process_group", case, size, run, program=program)

    def _calls(self) -> Iterator[Question]:
        """The cells of the matrix: all on the smallest world, float32 on the others."""
        first, *others = self.world_sizes
        more = {1, *others} if self.quick else {1, 3, *others}
        for size in (first, *sorted(more - {first})):
            dtype = ["float32"] if self.quick or size != first else None
            cells = selection.select([self.backend], device=[self.device], world_sizes=[size])
            for cell in cells:
                if cell.dtype is None or not dtype or cell.dtype in dtype:
                    yield self.cell("calls", cell)

    def _sizes(self) -> Iterator[Question]:
        lengths = SHORT if self.quick else LENGTHS
        for size in self.world_sizes:
            for name in self.names():
                for elements in (*lengths, *self.sizes):
                    if (elements or 0) > _LONGEST and size > 2 and elements not in self.sizes:
                        continue
                    for dtype in ("float32", "int64"):
                        if (elements, dtype) == (None, "float32"):
                            continue  # that is how the cells of the matrix are asked
                        data = "wide" if (elements or 0) >= _LONG else "exact"
                        cell = self.detailed(name, dtype, size, elements=elements, data=data)
                        yield self.cell("sizes", cell)
                if not self.quick:
                    yield from self._long_variants(name, size)

    def _long_variants(self, name: str, size: int) -> Iterator[Question]:
        known = (*FORMS[name].variants, "offset")
        for variant in LONG_VARIANTS:
            if variant in known:
                cell = self.detailed(name, "float32", size, variant, elements=65_537, data="wide")
                yield self.cell("sizes", cell)
        for op in ("AVG", "MAX") if name in REDUCING else ():
            cell = self.detailed(name, "float32", size, elements=65_537)
            yield self.cell("sizes", replace(cell, op=op))

    def _widths(self) -> Iterator[Question]:
        for size in self.world_sizes[:1] if self.quick else self.world_sizes:
            for name in self.names():
                for dtype in values.DTYPES:
                    for op in _wide_ops(name, dtype, size):
                        cell = self.detailed(name, dtype, size, elements=257, data="wide")
                        yield self.cell("widths", replace(cell, op=op))
                if name in REDUCING:
                    for dtype in ("float32", "float64", "bfloat16", "float16"):
                        for op in ("SUM", "MIN", "MAX"):
                            cell = self.detailed(name, dtype, size, elements=28, data="special")
                            yield self.cell("widths", replace(cell, op=op))
        yield from rounding.questions(self.backend, self.device, self.world_sizes)

    def _groups(self) -> Iterator[Question]:
        members = (1, 3)
        for name in self.names():
            form = FORMS[name]
            roots = members if "root" in form.variants else (-1,)
            for root in roots:
                for dtype in ("float32", "int64"):
                    for op in ("SUM", "AVG", "MAX") if form.reduces else (None,):
                        cell = self.detailed(name, dtype, 4, members=members, chosen_root=root)
                        yield self.cell("groups", replace(cell, op=op))
            cell = self.detailed(name, "float32", 4, members=(2,))
            if form.fewest == 1:
                yield self.cell("groups", cell)
        for late in range(4):
            run = functools.partial(at_once.late_barrier, late=late)
            cell = self.detailed("barrier", None, 4, chosen_root=late)
            case, program = f"rank {late} comes last", ("barrier", cell)
            yield Question("groups", "barrier", case, 4, run, program=program)

    def names(self) -> list[str]:
        """The forms of the calls that move tensors and that this torch has."""
        return [name for name in (*REDUCING, *MOVING, *COALESCED) if called(FORMS[name])]

    def detailed(
        self, name: str, dtype: str | None, size: int, variant: str = "", **details: Any
    ) -> DetailedCell:
        form = FORMS[name]
        op = "SUM" if form.reduces else None
        full = f"{name}:{variant}" if variant else name
        return DetailedCell(
            form.collective, full, self.backend, self.device, dtype, op, size, **details
        )

    def cell(self, section: str, cell: Cell) -> Question:
        """The question that probes a cell."""
        run = functools.partial(_probe, cell=cell)
        words = [word for word in (cell.op, cell.dtype, *_details(cell)) if word]
        traits: dict[str, Any] = {"dtype": cell.dtype, "op": cell.op, "variant": cell.variant}
        if isinstance(cell, DetailedCell):
            length = 2 * len(cell.ranks) + 1 if cell.elements is None else cell.elements
            traits |= {"elements": length, "data": cell.data, "members": cell.members}
        limit = 40.0 if traits.get("elements", 0) > _LONGEST else 15.0
        return Question(
            section,
            cell.name,
            ", ".join(words),
            cell.world_size,
            run,
            tuple(traits.items()),
            limit,
            cell,
        )


def _probe(rank: int, world_size: int, device: torch.device, cell: Cell) -> str | None:
    return probe(rank, world_size, device, cell, Silence.__new__(Silence))


def _details(cell: Cell) -> list[str]:
    found = [cell.form.partition(":")[2]]
    if isinstance(cell, DetailedCell):
        if cell.elements is not None:
            found.append(f"{cell.elements:,} elements")
        if cell.data != "exact":
            found.append({"wide": "wide values", "special": "nan, inf, -0.0"}[cell.data])
        if cell.members:
            found.append(f"group {list(cell.members)}")
        if cell.chosen_root >= 0:
            found.append(f"root {cell.chosen_root}")
    return found


def _wide_ops(name: str, dtype: str, size: int) -> tuple[str | None, ...]:
    """The reductions that are exact with wide values; (None,) for a call that only moves them."""
    form, kind = FORMS[name], values.DTYPES[dtype]
    if form.dtypes == "few" and dtype not in ("float32", "int64", "bfloat16", "bool", "complex64"):
        return ()
    if not form.reduces:
        return (None,)
    if kind is torch.bool or "float8" in dtype:
        return ()
    if kind.is_complex or form.dtypes != "all":
        return ("SUM",)
    is_float = kind.is_floating_point
    ops = [op for op in wide_values.OPS if op != "AVG" or (is_float and size in (1, 2, 4, 8))]
    if is_float and wide_values.bits(kind) < 16:  # a bound is asked instead
        ops = [op for op in ops if op in ("MIN", "MAX")]
    return (*ops, *(() if is_float else values.BITWISE))
