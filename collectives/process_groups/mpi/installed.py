"""What of MPI is installed: mpi4py, and mpiexec. MPI itself is not started."""

import importlib.util
import os
import shutil
import sys


def missing_for_mpi() -> str | None:
    """What our MPI backend lacks on this machine, or None. Does not start MPI."""
    if importlib.util.find_spec("mpi4py") is None:
        return "mpi4py"
    return None if mpiexec() else "mpiexec"


def mpiexec() -> str | None:
    """The path of mpiexec: next to this Python, where pip installs it, or else on the PATH."""
    return shutil.which("mpiexec", path=os.path.dirname(sys.executable)) or shutil.which("mpiexec")
