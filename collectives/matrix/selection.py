"""The cells that the flags of the command line select."""

from collections.abc import Iterable

from collectives.backends import availability
from collectives.matrix.cells import cells
from collectives.semantics import values
from collectives.semantics.calls import LESSONS, OPS
from collectives.semantics.cell import Cell
from collectives.semantics.forms import FORMS, called
from collectives.words import did_you_mean

# What --quick tries, without the variant "lazy".
_QUICK = "float32", "SUM"


def columns(names: list[str] | None) -> list[tuple[str, str]]:
    """The named backends with their devices; without names, all backends that we know."""
    if not names:
        return [
            (backend.name, device)
            for backend in availability.BACKENDS.values()
            for device in backend.devices
        ]
    chosen = _known("backend", [name.lower() for name in names], availability.known_backends())
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
    found = [
        cell
        for cell in cells(chosen, world_sizes or [2], forms)
        if (not dtypes or cell.dtype in dtypes)
        and (not ops or cell.op in ops)
        and not (quick and cell.variant == "lazy")
    ]
    if not found:
        raise ValueError(
            "no cell matches all of that: a dtype needs a form that takes tensors, "
            "an op one that reduces."
        )
    return found


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
