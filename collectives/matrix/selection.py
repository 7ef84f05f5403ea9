"""Which cells the words of the command line name."""

import difflib
from collections.abc import Iterable

from collectives.backends import availability as backends
from collectives.matrix.cells import cells
from collectives.spec import values
from collectives.spec.calls import LESSONS, OPS
from collectives.spec.cell import Cell
from collectives.spec.forms import FORMS

# What --quick tries.
_QUICK = "float32", "SUM"


def columns(names: list[str] | None) -> list[tuple[str, str]]:
    """Backends with the devices they work on. All that we know of, unless said otherwise."""
    if not names:
        return [
            (backend, device) for backend, devices in backends.DEVICES.items() for device in devices
        ]
    chosen = _known("backend", [name.lower() for name in names], backends.known_backends())
    return [(backend, device) for backend in chosen for device in _devices(backend)]


def _devices(backend: str) -> tuple[str, ...]:
    import torch.distributed as dist

    capable = dist.Backend.backend_capability.get(backend, ())
    return (
        backends.DEVICES.get(backend)
        or tuple(device for device in ("cpu", "cuda") if device in capable)
        or ("cpu",)
    )


def select(
    backend: list[str] | None = None,
    collective: list[str] | None = None,
    dtype: list[str] | None = None,
    op: list[str] | None = None,
    world_sizes: list[int] | None = None,
    quick: bool = False,
    device: list[str] | None = None,
) -> list[Cell]:
    """The cells that match everything that was said. ValueError, with the nearest match and the list, for an unknown name.

    A collective goes by its lesson's name, and any form by its own.
    """
    dtypes = _known("dtype", dtype or (), values.DTYPES)
    ops = _known("op", [name.upper() for name in op or ()], OPS)
    forms = _known("collective", collective or (), LESSONS, FORMS)
    devices = _known(
        "device", device or (), dict.fromkeys(device for _, device in columns(backend))
    )
    if quick:
        dtypes, ops = dtypes or [_QUICK[0], None], ops or [_QUICK[1], None]
    found = [
        cell
        for cell in cells(columns(backend), world_sizes or [2])
        if (not dtypes or cell.dtype in dtypes)
        and (not ops or cell.op in ops)
        and (not devices or cell.device in devices)
        and (not forms or cell.collective in forms or cell.name in forms)
    ]
    if not found:
        raise ValueError(
            "no cell matches all of that: a dtype needs a form that takes tensors, an op one that reduces."
        )
    return found


def _known(
    flag: str, names: Iterable[str], listed: Iterable[str], also: Iterable[str] = ()
) -> list:
    for name in names:
        if name not in listed and name not in also:
            near = difflib.get_close_matches(name, [*listed, *also], 1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ValueError(
                f"--{flag} {name!r} is not known: {hint}There are {', '.join(listed)}."
            )
    return list(names)
