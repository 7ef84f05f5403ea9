"""Backends of torch.distributed that this package brings. Importing this package makes torch know them; nothing is started yet.

import collectives.process_groups
dist.init_process_group("mpi", init_method="mpi://")  # in a script under mpiexec
"""

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

# What torch's own MPI is called from now on. The wheels of torch are built without it.
_BUILT_IN = "mpi, built into torch"


def _register_mpi() -> None:
    """Let "mpi" mean our MPI, over mpi4py.

    subtle: a backend of that name can be registered, but is never reached: torch compares each name with Backend.MPI first, and
    takes the way to the MPI that it was built with, or not. So that constant gets another value, and `Backend(...)`, which looks
    words up among the constants, is told what "mpi" means.
    """
    look_up = dist.Backend.__new__

    def name_of(cls, name):
        return (
            "mpi"
            if isinstance(name, str) and name.lower() in ("mpi", _BUILT_IN)
            else look_up(cls, name)
        )

    dist.Backend.__new__ = staticmethod(name_of)
    dist.is_mpi_available = c10d.is_mpi_available = _is_available
    del dist.Backend.MPI  # older versions of torch register no name that is taken
    dist.Backend.register_backend("mpi", _mpi, extended_api=True, devices=["cpu"])
    dist.Backend.MPI = _BUILT_IN
    dist.register_rendezvous_handler("mpi", _meet)


def _is_available() -> bool:
    """What `dist.is_backend_available("mpi")` asks."""
    from collectives.backends import availability as backends

    return backends.missing_for_mpi() is None


def _mpi(options, _):
    from collectives.backends.mpi.group import ProcessGroupMPI

    return ProcessGroupMPI(options)


def _meet(url, timeout=dist.default_pg_timeout, **_):
    """What `init_method="mpi://"` does: the store, the rank and the world size come from MPI."""
    from collectives.backends.mpi import store as mpi_store

    yield mpi_store.open(timeout.total_seconds())


if "MPI" not in dist.Backend._plugins:
    _register_mpi()
