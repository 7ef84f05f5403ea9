"""python prints what the notebook of a lesson shows, byte for byte; what the other doors compare."""

import re
import runpy
import subprocess
import sys

import pytest
from lesson_source import Source
from processes import finished

from collectives.course import chapters, files
from collectives.course.marks import world_of

# Runs each lesson as a program, but all in the same process: importing torch takes longer than most
# lessons.
EVERY = """
import pathlib, runpy, sys
from collectives.course import files
lessons, sys.argv[1:] = sys.argv[1:], []
for lesson in lessons:
    with files.imports_from(pathlib.Path(lesson).parent):
        runpy.run_path(lesson, run_name="__main__")
"""
NAMES = [
    name for chapter in chapters.read().values() if not chapter.isolated for name in chapter.names
]


CALLS = [name for name in NAMES if "/" not in name]


def all_expected(names):
    """What the notebooks of these lessons show."""
    return "".join(text for name in names for text in Source(name).printed.values())


# The notebooks of all lessons are executed in test_notebooks.py. torchrun runs all in test_wheel.py,
# and those on the calls over two machines in test_clusters.py, as mpiexec does.
@pytest.mark.parametrize(
    "lesson", ["all_reduce", pytest.param("training/checkpoint", marks=pytest.mark.slow)]
)
def test_python_prints_what_the_notebook_shows(lesson):
    """In its own process, which imports only what the lesson imports."""
    done = finished(["python", files.find(lesson), "--backend", "gloo"])
    assert (done.stdout, done.returncode) == (all_expected([lesson]), 0), done.stderr


def defined(text: str) -> str:
    """Without what a backend may choose: what `reduce` leaves on the ranks that are not the root,
    and whether an asynchronous call is refused when it starts or when it is waited for. Without the
    steps on gloo, which another backend must skip.
    """
    steps = [step for name in NAMES for step in files.load(files.find(name)).STEPS]
    on_gloo = "|".join(step.__name__ for step in steps if world_of(step).backend == "gloo")
    chosen = r"(?<=(what_is_left|rror_at_wait): proved on all 4 ranks\n).*(?:\n  .*){4}"
    skipped = "skipped: it shows what gloo does"
    shown = rf"^(?:{on_gloo}): (?:{skipped}|proved on all 4 ranks\n.*(?:\n  .*){{4}})\n"
    return re.sub(f"{chosen}|{shown}", "", text, flags=re.MULTILINE)


@pytest.mark.slow
def test_a_closed_pipe_is_no_error():
    command = f'"{sys.executable}" "{files.find("broadcast")}" | head -n 1'
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=100)
    assert done.stdout == "broadcast: proved on all 4 ranks\n"
    assert "Traceback" not in done.stderr


TOO_FEW = "send_recv: skipped: it needs at least 2 ranks, this world has 1\n"


@pytest.mark.parametrize(
    ("options", "status", "printed", "said"),
    [
        (["-n", "0"], 2, "", "send_recv: nproc=0 is not a number of ranks: use a whole number"),
        (["-n", "1"], 3, TOO_FEW, ""),
        (["--backend", "glo"], 2, "", "did you mean 'gloo'?"),
    ],
    ids=["no_ranks", "too_few_ranks", "unknown_backend"],
)
def test_a_lesson_that_cannot_run_says_why_and_ends_with_its_status(
    options, status, printed, said, monkeypatch, capsys
):
    monkeypatch.setattr(sys, "argv", ["send_recv.py", *options])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(files.find("send_recv")), run_name="__main__")
    output, errors = capsys.readouterr()
    assert (ended.value.code, output) == (status, printed)
    assert said in errors
