"""Whether mpi4py and its library are here. Another process tries it: some that load a library which
does not fit are ended by that.
"""

import functools
import importlib.util
import subprocess
import sys

CURE = "pip install 'torch-collectives[mpi]' brings it"
_LIMIT = 60  # seconds
# The alarm ends it also if nobody waits for it any more.
_IMPORT = """
import sys
sys.path[:] = {path}
import signal
signal.alarm({limit})
try:
    import mpi4py
    mpi4py.rc.initialize = False
    import mpi4py.MPI
except Exception as error:
    sys.exit(" ".join(f"{{type(error).__name__}}: {{error}}".split()))
print("imported", flush=True)
"""


@functools.cache
def fault() -> str | None:
    """Why this Python cannot import mpi4py with its library, or None. Does not start MPI."""
    if importlib.util.find_spec("mpi4py") is None:
        return f"mpi needs mpi4py, which is not here: {CURE}"
    if "mpi4py.MPI" in sys.modules or (how := _how_the_import_fails()) is None:
        return None
    return (
        f"mpi needs mpi4py with a library of MPI, but `from mpi4py import MPI` {how}: load the "
        "module of your cluster that has the library; elsewhere, pip install mpich brings one"
    )


def _how_the_import_fails() -> str | None:
    code = _IMPORT.format(path=sys.path, limit=_LIMIT)
    try:
        tried = subprocess.run(
            [sys.executable, "-P", "-c", code],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIMIT,
        )
    except subprocess.TimeoutExpired:
        return f"does not end within {_LIMIT} s"
    if tried.stdout.endswith("imported\n"):
        return None
    number = tried.returncode
    how = f"is ended by signal {-number}" if number < 0 else f"ends with status {number}"
    *_, last = ["", *tried.stderr.splitlines()]
    return f"{how} ({last})" if last else how
