"""The doors of a lesson print the same, byte for byte: python, torchrun, mpiexec, its notebook, and the functions in pytest."""

import os
import subprocess
import sys

import nbformat
import pytest

from collectives import backend as backends
from collectives import launch, lesson_files, notebooks
from collectives.collective import COLLECTIVES
from collectives.lesson import table


@pytest.fixture(scope="module", params=COLLECTIVES)
def lesson(request):
    return request.param


@pytest.fixture(scope="module")
def expected(lesson):
    """What the functions of the lesson return, imported and called as a test does."""
    steps = lesson_files.load(lesson_files.find(lesson)).STEPS
    return "".join(table(step.__name__, launch(step, 4, backend="gloo", device="cpu")) for step in steps)


def run(*command, **environ):
    done = subprocess.run(command, capture_output=True, text=True, timeout=150, env=os.environ | environ)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_python(lesson, expected):
    assert run(sys.executable, lesson_files.find(lesson), "--backend", "gloo") == expected


def test_torchrun(lesson, expected):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4"]
    assert run(*torchrun, lesson_files.find(lesson), "--backend", "gloo") == expected


@pytest.mark.skipif(backends.missing_for_mpi() is not None, reason="needs the extra collectives[mpi]")
def test_mpiexec(lesson, expected):
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    assert run(backends.mpiexec(), "-n", "4", sys.executable, lesson_files.find(lesson), **as_root) == expected


def test_its_notebook(lesson, expected):
    """As it was committed; test_notebooks.py executes it anew."""
    notebook = nbformat.read(notebooks.path_of(lesson_files.find(lesson)), as_version=4)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert "".join(output.text for output in outputs if output.output_type == "stream") == expected


def test_a_reader_who_has_seen_enough_is_no_error():
    command = f'"{sys.executable}" "{lesson_files.find("broadcast")}" | head -n 1'
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=100)
    assert (done.stdout, "Traceback" in done.stderr) == ("broadcast: proved on all 4 ranks\n", False)


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (["-n", "0"], 2, "send_recv: nproc=0 is not a number of ranks: use a whole number from 1.\n"),
        (["-n", "1"], 3, ""),  # and stdout says that it needs two
        (["--backend", "glo"], 2, "did you mean 'gloo'?"),
    ],
    ids=["no_ranks", "too_few_ranks", "unknown_backend"],
)
def test_a_lesson_that_cannot_run_says_why_and_ends_with_its_status(options, status, said):
    command = [sys.executable, lesson_files.find("send_recv"), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == status
    assert said in done.stderr
    assert done.stdout == ("send_recv: skipped: it needs at least 2 ranks, this world has 1\n" if status == 3 else "")
