"""One cell of the matrix, and all cells that a selection asks for."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from collectives.collective import OPS
from collectives.matrix import values
from collectives.matrix.form import Form
from collectives.matrix.forms import FORMS

# What "a few" dtypes are. Backends choose the code that runs by kind (float, integer, complex) more than by width, and how a tensor
# lies in memory is independent of both. So variants are tried with one float and one integer; the plain forms with every dtype.
_FEW = ("float32", "int64")
_RELATIVES = ("float32", "int64", "bfloat16", "bool", "complex64")
_FLOATS = ("float32", "float64")


@dataclass(frozen=True)
class Cell:
    """What is tried: these fields are the key of its answer."""

    collective: str
    form: str
    backend: str
    device: str
    dtype: str | None
    op: str | None
    world_size: int

    @property
    def name(self) -> str:
        """The form without its variant."""
        return self.form.partition(":")[0]

    @property
    def variant(self) -> str:
        """As in "async"; "root" for every root (see `root`); empty for the plain form."""
        variant = self.form.partition(":")[2]
        return "root" if variant.startswith("root") else variant

    @property
    def root(self) -> int:
        """The global rank of the root. In a subgroup it is the second member, whose rank in the group is another number."""
        if self.variant == "root":
            return int(self.form.partition(":root")[2])
        return self.ranks[1] if self.variant == "subgroup" and len(self.ranks) > 2 else self.ranks[0]

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that take part. A subgroup is all but the first, where that leaves two: else a second group of all."""
        everyone = tuple(range(self.world_size))
        return everyone[1:] if self.variant == "subgroup" and self.world_size > 2 else everyone


def cells(columns: list[tuple[str, str]], world_sizes: list[int]) -> Iterator[Cell]:
    """All cells of these (backend, device) columns, in the order of the grid."""
    for backend, device in columns:
        for world_size in world_sizes:
            for form in FORMS.values():
                if world_size >= form.fewest:
                    yield from _of_form(form, Cell(form.collective, form.name, backend, device, None, None, world_size))


def _of_form(form: Form, cell: Cell) -> Iterator[Cell]:
    for dtype in _dtypes(form):
        for op in OPS if _has_product(form) else ("SUM",) if form.reduces else (None,):
            yield dataclasses.replace(cell, dtype=dtype, op=op)
    for variant in form.variants:
        names = [f"root{rank}" for rank in range(1, cell.world_size)] if variant == "root" else [variant]
        for name in names:
            for dtype in [None] if form.dtypes == "none" else _FEW if form.dtypes == "all" else _FEW[:1]:
                yield dataclasses.replace(cell, form=f"{form.name}:{name}", dtype=dtype, op="SUM" if form.reduces else None)


def _has_product(form: Form) -> bool:
    """Every dtype with every reduction: for the reducing forms of the lessons."""
    return form.reduces and form.dtypes == "all"


def _dtypes(form: Form) -> list[str | None]:
    chosen = {"all": tuple(values.DTYPES), "few": _RELATIVES, "float": _FLOATS, "none": (None,)}[form.dtypes]
    return [dtype for dtype in chosen if dtype is None or dtype in values.DTYPES]
