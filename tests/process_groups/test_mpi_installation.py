"""Where mpi4py is installed and its library cannot be loaded, MPI is missing, and nothing dies."""

import pytest
from processes import finished

ENDS = {
    "raises": (
        "raise RuntimeError('no libmpi.so:\\n not here')",
        "(RuntimeError: no libmpi.so: not here)",
    ),
    "crashes": ("import ctypes; ctypes.string_at(0)", "is ended by signal 11"),
    "leaves": ("import os; os._exit(0)", "ends with status 0"),
}
ASK = """
from collectives.backends import availability
print(availability.modules(["gloo", "mpi"]))
print(availability.missing_for_mpi())
"""


@pytest.fixture(params=ENDS)
def broken(request, tmp_path):
    """The environment with an mpi4py that ends in this way, and what is said of it."""
    program, said = ENDS[request.param]
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").write_text("class rc:\n    initialize = True\n")
    (tmp_path / "mpi4py" / "MPI.py").write_text(
        f"import mpi4py\nif not mpi4py.rc.initialize:\n    {program}\n"
    )
    return {"PYTHONPATH": str(tmp_path)}, said


def test_it_is_not_preloaded_and_the_reason_is_one_sentence(broken):
    environ, said = broken
    modules, reason = finished(["python", "-c", ASK], env=environ).stdout.splitlines()
    assert modules == "()"
    assert reason.startswith(
        "mpi needs mpi4py with a library of MPI, but `from mpi4py import MPI` "
    )
    assert said in reason


@pytest.mark.slow
def test_the_matrix_measures_the_other_backends(broken):
    environ, said = broken
    done = finished("collectives matrix --quick --collective barrier", env=environ)
    assert done.returncode == 0, done.stderr
    assert "mpi/cpu: unavailable here: mpi needs mpi4py with a library of MPI" in done.stdout
    assert said in done.stdout
    assert done.stdout.endswith("10 cells: all as claimed\n")
    assert "Traceback" not in done.stderr
