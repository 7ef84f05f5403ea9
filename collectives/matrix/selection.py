"""All cells that there are, and those that the flags of the command line select."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from collectives.backends import availability
from collectives.semantics import values
from collectives.semantics.calls import LESSONS, OPS
from collectives.semantics.cell import Cell
from collectives.semantics.form import Form
from collectives.semantics.forms import FORMS, called
from collectives.words import did_you_mean

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

# What --quick tries, without the variant "lazy".
_QUICK = "float32", "SUM"


def columns(names: list[str] | None) -> list[tuple[str, str]]:
    """The named backends with their devices; without names, all backends that we know."""
    wanted = [name.lower() for name in names or availability.BACKENDS]
    chosen = _known("backend", wanted, availability.known_backends())
    return [(backend, device) for backend in chosen for device in availability.devices_of(backend)]


def select(
    backend: list[str] | None = None,
    collective: list[str] | None = None,
    dtype: list[str] | None = None,
    op: list[str] | None = None,
    world_sizes: list[int] | None = None,
    quick: bool = False,
    device: list[str] | None = None,
) -> list[Cell]:
    """The cells that match all of these names.

    `collective` has names of lessons, which stand for all their forms, or names of forms. A form
    that this torch lacks has cells only if it is named.
    ValueError for an unknown name, with the nearest known one and the list, and if no cell matches.
    """
    dtypes = _known("dtype", dtype or (), values.DTYPES)
    ops = _known("op", [name.upper() for name in op or ()], OPS)
    names = _known("collective", collective or (), LESSONS, FORMS)
    forms = [
        form
        for form in FORMS.values()
        if form.name in names or (called(form) and (not names or form.collective in names))
    ]
    places = columns(backend)
    devices = _known("device", device or (), dict.fromkeys(device for _, device in places))
    chosen = [place for place in places if not devices or place[1] in devices]
    if quick:
        dtypes, ops = dtypes or [_QUICK[0], None], ops or [_QUICK[1], None]
    selected = [
        cell
        for cell in cells(chosen, world_sizes or [2], forms)
        if (not dtypes or cell.dtype in dtypes)
        and (not ops or cell.op in ops)
        and not (quick and cell.variant == "lazy")
    ]
    if not selected:
        raise ValueError(
            "no cell matches all of that: a dtype needs a form that takes tensors, "
            "an op one that reduces."
        )
    return selected


def _known(
    flag: str, names: Iterable[str], listed: Iterable[str], also: Iterable[str] = ()
) -> list:
    """The names as a list. ValueError for a name that is neither in `listed` nor in `also`."""
    for name in names:
        if name not in listed and name not in also:
            hint = did_you_mean(name, [*listed, *also])
            raise ValueError(
                f"--{flag} {name!r} is not known: {hint}There are {', '.join(listed)}."
            )
    return list(names)


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
