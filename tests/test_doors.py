"""python, torchrun and mpiexec print what the notebook of a lesson shows, byte for byte."""

import os
import re
import runpy
import subprocess
import sys

import nbformat
import pytest

from collectives.backends import availability as backends
from collectives.lesson import files
from collectives.lesson.chapters import CHAPTERS
from collectives.lesson.make import notebooks

# Runs each lesson as a program, but all in the same process: importing torch takes longer than most
# lessons.
EVERY = """
import runpy, sys
lessons, sys.argv[1:] = sys.argv[1:], []
for lesson in lessons:
    runpy.run_path(lesson, run_name="__main__")
"""
NAMES = [name for chapter in CHAPTERS.values() if not chapter.isolated for name in chapter.names]
LESSONS = [files.find(lesson) for lesson in NAMES]
every_lesson = pytest.mark.parametrize("lesson", LESSONS, ids=NAMES)


def expected(lesson):
    """What the committed notebook of a lesson shows; test_notebooks.py executes it anew."""
    notebook = nbformat.read(notebooks.path_of(lesson), as_version=4)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return "".join(output.text for output in outputs if output.output_type == "stream")


# Those with an extra take longer than all others together.
every_chapter = pytest.mark.parametrize(
    "names",
    [
        pytest.param([name for name in NAMES if "/" not in name], id="collectives"),
        pytest.param(CHAPTERS["training"].names, id="training", marks=pytest.mark.slow),
        pytest.param(CHAPTERS["algorithms"].names, id="algorithms", marks=pytest.mark.slow),
    ],
)


def run_every(names, *launcher, **environ):
    done = subprocess.run(
        [*launcher, sys.executable, "-c", EVERY, *map(files.find, names)],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""} | environ,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "lesson",
    [
        pytest.param(
            lesson, marks=() if lesson in ("all_reduce", "send_recv") else pytest.mark.slow
        )
        for lesson in NAMES
    ],
)
def test_python_prints_what_the_notebook_shows(lesson):
    """In its own process, which imports only what the lesson imports."""
    done = subprocess.run(
        [sys.executable, files.find(lesson), "--backend", "gloo"],
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert (done.stdout, done.returncode) == (expected(files.find(lesson)), 0), done.stderr


def all_expected(names):
    return "".join(expected(files.find(name)) for name in names)


@every_chapter
def test_python_prints_what_every_notebook_shows(names):
    assert run_every(names) == all_expected(names)


@every_chapter
def test_torchrun_prints_what_every_notebook_shows(names):
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "4",
        "--no-python",
    ]
    assert run_every(names, *torchrun) == all_expected(names)


@pytest.mark.skipif(
    backends.missing_for_mpi() is not None, reason="needs the extra collectives[mpi]"
)
@every_chapter
def test_mpiexec_prints_what_every_notebook_shows(names):
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    printed = run_every(names, backends.mpiexec(), "-n", "4", **as_root)
    assert defined(printed) == defined(all_expected(names))


def defined(text: str) -> str:
    """Without what a backend may choose: what `reduce` leaves on the ranks that are not the root,
    and whether an asynchronous call is refused when it starts or when it is waited for.
    """
    chosen = r"(?<=(what_is_left|rror_at_wait): proved on all 4 ranks\n).*(?:\n  .*){4}"
    return re.sub(chosen, "", text)


def test_a_closed_pipe_is_no_error():
    command = f'"{sys.executable}" "{files.find("broadcast")}" | head -n 1'
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=100)
    assert (done.stdout, "Traceback" in done.stderr) == (
        "broadcast: proved on all 4 ranks\n",
        False,
    )


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (
            ["-n", "0"],
            2,
            "send_recv: nproc=0 is not a number of ranks: use a whole number from 1.\n",
        ),
        (["-n", "1"], 3, ""),  # and stdout says that it needs two
        (["--backend", "glo"], 2, "did you mean 'gloo'?"),
    ],
    ids=["no_ranks", "too_few_ranks", "unknown_backend"],
)
def test_a_lesson_that_cannot_run_says_why_and_ends_with_its_status(
    options, status, said, monkeypatch, capsys
):
    monkeypatch.setattr(sys, "argv", ["send_recv.py", *options])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(files.find("send_recv")), run_name="__main__")
    output, errors = capsys.readouterr()
    assert ended.value.code == status
    assert said in errors
    assert output == (
        "send_recv: skipped: it needs at least 2 ranks, this world has 1\n" if status == 3 else ""
    )
