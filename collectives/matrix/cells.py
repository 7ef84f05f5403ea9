"""All cells that a selection asks for."""

from collections.abc import Iterator
from dataclasses import replace

from collectives.semantics import values
from collectives.semantics.calls import OPS
from collectives.semantics.cell import Cell
from collectives.semantics.form import Form
from collectives.semantics.forms import FORMS

# The plain forms are tried with every dtype, their variants with one float and one integer.
# Backends choose the code that runs by the kind of the dtype more than by its width, and how a
# tensor lies in memory is independent of both.
_VARIANT_DTYPES = ("float32", "int64")

# The variant "lazy" tries tensors with the negative bit, and complex ones with the conjugate bit.
_LAZY_DTYPES = ("float32", "complex64")

# What the forms with `dtypes="few"` and `dtypes="float"` are tried with.
_FEW = ("float32", "int64", "bfloat16", "bool", "complex64")
_FLOATS = ("float32", "float64")


def cells(columns: list[tuple[str, str]], world_sizes: list[int]) -> Iterator[Cell]:
    """All cells of these (backend, device) columns, in the order of the grid."""
    for backend, device in columns:
        for world_size in world_sizes:
            for form in FORMS.values():
                if world_size >= form.fewest:
                    cell = Cell(form.collective, form.name, backend, device, None, None, world_size)
                    yield from _cells_of(form, cell)


def _cells_of(form: Form, cell: Cell) -> Iterator[Cell]:
    """The cells of a form: `cell` with every dtype, reduction and variant."""
    for dtype in _dtypes(form):
        for op in _ops(form):
            yield replace(cell, dtype=dtype, op=op)
    op = "SUM" if form.reduces else None
    for variant in _variants(form, cell.world_size):
        for dtype in _variant_dtypes(form, variant):
            yield replace(cell, form=f"{form.name}:{variant}", dtype=dtype, op=op)


def _ops(form: Form) -> tuple[str | None, ...]:
    """Only the forms with every dtype are tried with every reduction."""
    if not form.reduces:
        return (None,)
    return OPS if form.dtypes == "all" else ("SUM",)


def _dtypes(form: Form) -> list[str | None]:
    if form.dtypes == "none":
        return [None]
    chosen = {"all": values.DTYPES, "few": _FEW, "float": _FLOATS}[form.dtypes]
    return [dtype for dtype in chosen if dtype in values.DTYPES]


def _variants(form: Form, world_size: int) -> list[str]:
    """The variants; "root" stands for every root but rank 0."""
    roots = [f"root{rank}" for rank in range(1, world_size)]
    found = []
    for variant in form.variants:
        found += roots if variant == "root" else [variant]
    return found


def _variant_dtypes(form: Form, variant: str) -> tuple[str | None, ...]:
    if form.dtypes == "none":
        return (None,)
    if variant == "lazy":
        return _LAZY_DTYPES
    return _VARIANT_DTYPES if form.dtypes == "all" else _VARIANT_DTYPES[:1]
