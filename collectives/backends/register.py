"""Importing this module registers our backends with torch.distributed. It starts nothing.

A script that torchrun runs then takes `dist.init_process_group("by_hand")`, and one that mpiexec
runs `dist.init_process_group("mpi", init_method="mpi://")`. From torch 2.14 on, the first
needs no import: torch finds by_hand by its entry point.

>>> import collectives.backends.register
>>> dist.is_backend_available("by_hand")
True
"""

import functools
import importlib

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from collectives.backends.availability import BACKENDS, Backend, missing_for_mpi

# The new name of torch's own MPI backend. The wheels of torch are built without it.
_BUILT_IN = "mpi, built into torch"


def _register(backend: Backend) -> None:
    new_group = functools.partial(_new_group, backend)
    devices = list(backend.devices)
    dist.Backend.register_backend(backend.name, new_group, extended_api=True, devices=devices)


def _new_group(backend: Backend, options, own_options) -> dist.ProcessGroup:
    module, _, name = backend.group.partition(":")
    return getattr(importlib.import_module(module), name)(options, own_options)


def _register_mpi() -> None:
    """Make "mpi" mean our backend, which uses mpi4py.

    subtle: registering the name is not enough. torch compares each name with the constant
    Backend.MPI first, and if they are equal uses the MPI it was built with. So that constant gets
    another value. `Backend(name)` looks names up among the constants, so it is replaced as well.
    """
    look_up = dist.Backend.__new__

    def name_of(cls, name):
        is_mpi = isinstance(name, str) and name.lower() in ("mpi", _BUILT_IN)
        return "mpi" if is_mpi else look_up(cls, name)

    dist.Backend.__new__ = staticmethod(name_of)  # type: ignore[method-assign]
    dist.is_mpi_available = c10d.is_mpi_available = lambda: missing_for_mpi() is None
    del dist.Backend.MPI  # older versions of torch refuse to register a name that exists
    _register(BACKENDS["mpi"])
    dist.Backend.MPI = _BUILT_IN
    dist.register_rendezvous_handler("mpi", _rendezvous)


def _rendezvous(url, timeout=dist.default_pg_timeout, **_):
    """For `init_method="mpi://"`: the store, the rank and the world size come from MPI."""
    from collectives.process_groups.mpi.library import open_store

    yield open_store(timeout.total_seconds())


def register_by_hand() -> None:
    """What torch 2.14 and newer call if a program names by_hand; this import has registered it.

    mpi has no such entry point: torch names its own one "mpi", and which of two comes first is
    open.
    """


for _backend in BACKENDS.values():
    if _backend.group and _backend.name.upper() not in dist.Backend._plugins:
        _register_mpi() if _backend.name == "mpi" else _register(_backend)
