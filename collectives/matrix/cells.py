"""All cells that a selection asks for."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from collectives.semantics import values
from collectives.semantics.calls import OPS
from collectives.semantics.cell import Cell
from collectives.semantics.form import Form
from collectives.semantics.forms import FORMS

# What the plain forms are tried with, by their `dtypes`.
_DTYPES: dict[str, tuple[str | None, ...]] = {
    "all": tuple(values.DTYPES),
    "few": ("float32", "int64", "bfloat16", "bool", "complex64"),
    "float": ("float32", "float64"),
    "none": (None,),
}
# Their variants are tried with one float and one integer. Backends choose the code that runs by the
# kind of the dtype more than by its width, and how a tensor lies in memory is independent of both.
_VARIANT_DTYPES = {"all": ("float32", "int64"), "none": (None,)}

# The variant "lazy" tries tensors with the negative bit, and complex ones with the conjugate bit.
_LAZY_DTYPES = ("float32", "complex64")


def cells(
    columns: list[tuple[str, str]],
    world_sizes: list[int],
    forms: Iterable[Form] = FORMS.values(),
) -> Iterator[Cell]:
    """All cells of these (backend, device) columns and forms, in the order of the grid."""
    for backend, device in columns:
        for world_size in world_sizes:
            for form in forms:
                if world_size >= form.fewest:
                    cell = Cell(form.collective, form.name, backend, device, None, None, world_size)
                    yield from _cells_of(form, cell)


def _cells_of(form: Form, cell: Cell) -> Iterator[Cell]:
    """The cells of a form: `cell` with every dtype, reduction and variant."""
    op = "SUM" if form.reduces else None
    has_every_op = form.reduces and form.dtypes == "all"
    for dtype in _DTYPES[form.dtypes]:
        for one in OPS if has_every_op else (op,):
            yield replace(cell, dtype=dtype, op=one)
    roots = [f"root{rank}" for rank in range(1, cell.world_size)]
    for variant in form.variants:
        dtypes = _VARIANT_DTYPES.get(form.dtypes, ("float32",))
        if variant == "lazy" and form.dtypes != "none":
            dtypes = _LAZY_DTYPES
        # "root" stands for every root but rank 0.
        for name in roots if variant == "root" else [variant]:
            for dtype in dtypes:
                yield replace(cell, form=f"{form.name}:{name}", dtype=dtype, op=op)
