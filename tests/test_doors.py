"""The doors of a lesson print the same, byte for byte: python, torchrun, mpiexec, a notebook, and the functions in pytest."""

import os
import subprocess
import sys

import jupytext
import pytest
from nbclient import NotebookClient

from collectives import backend as backends
from collectives import launch, lesson_files
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


def test_a_notebook(lesson, expected):
    notebook = jupytext.read(lesson_files.find(lesson))
    # No CUDA: on a machine with GPUs the notebook would choose NCCL, and this is about the same backend through all doors.
    client = NotebookClient(notebook, timeout=100, kernel_name="python3", resources={"metadata": {"path": "."}})
    client.execute(env=os.environ | {"CUDA_VISIBLE_DEVICES": ""})
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert "".join(output.text for output in outputs if output.output_type == "stream" and output.name == "stdout") == expected
    assert not [output for output in outputs if output.output_type == "error"]
