"""All cells that a selection asks for."""

import dataclasses
from collections.abc import Iterator

from collectives.spec import values
from collectives.spec.calls import OPS
from collectives.spec.cell import Cell
from collectives.spec.form import Form
from collectives.spec.forms import FORMS

# What "a few" dtypes are. Backends choose the code that runs by kind (float, integer, complex) more than by width, and how a tensor
# lies in memory is independent of both. So variants are tried with one float and one integer; the plain forms with every dtype.
_FEW = ("float32", "int64")
_RELATIVES = ("float32", "int64", "bfloat16", "bool", "complex64")
_FLOATS = ("float32", "float64")


def cells(columns: list[tuple[str, str]], world_sizes: list[int]) -> Iterator[Cell]:
    """All cells of these (backend, device) columns, in the order of the grid."""
    for backend, device in columns:
        for world_size in world_sizes:
            for form in FORMS.values():
                if world_size >= form.fewest:
                    yield from _of_form(
                        form,
                        Cell(form.collective, form.name, backend, device, None, None, world_size),
                    )


def _of_form(form: Form, cell: Cell) -> Iterator[Cell]:
    for dtype in _dtypes(form):
        for op in OPS if _has_product(form) else ("SUM",) if form.reduces else (None,):
            yield dataclasses.replace(cell, dtype=dtype, op=op)
    for variant in form.variants:
        names = (
            [f"root{rank}" for rank in range(1, cell.world_size)]
            if variant == "root"
            else [variant]
        )
        for name in names:
            for dtype in (
                [None] if form.dtypes == "none" else _FEW if form.dtypes == "all" else _FEW[:1]
            ):
                yield dataclasses.replace(
                    cell,
                    form=f"{form.name}:{name}",
                    dtype=dtype,
                    op="SUM" if form.reduces else None,
                )


def _has_product(form: Form) -> bool:
    """Every dtype with every reduction: for the reducing forms of the lessons."""
    return form.reduces and form.dtypes == "all"


def _dtypes(form: Form) -> list[str | None]:
    chosen = {"all": tuple(values.DTYPES), "few": _RELATIVES, "float": _FLOATS, "none": (None,)}[
        form.dtypes
    ]
    return [dtype for dtype in chosen if dtype is None or dtype in values.DTYPES]
