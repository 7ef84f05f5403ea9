"""python prints what the notebook of a lesson shows, byte for byte; what the other doors compare."""

import runpy
import subprocess
import sys

import pytest
from doors import all_expected
from processes import finished

from collectives.course import files


# The notebooks of all lessons are executed in test_notebooks.py. torchrun runs those on the calls and
# one for each need of the others in test_wheel.py, and some over two machines in test_clusters.py,
# where mpiexec runs those on the calls.
@pytest.mark.parametrize(
    "lesson", ["all_reduce", pytest.param("training/checkpoint", marks=pytest.mark.slow)]
)
def test_python_prints_what_the_notebook_shows(lesson):
    """In its own process, which imports only what the lesson imports."""
    done = finished(["python", files.find(lesson), "--backend", "gloo"])
    assert (done.stdout, done.returncode) == (all_expected([lesson]), 0), done.stderr


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


def test_a_lesson_of_which_every_step_is_skipped_ends_with_status_3(tmp_path, monkeypatch, capsys):
    """Also where its first step does not bear the name of its file."""
    program = """
from collectives import needs, run

@needs(ranks=2)
def pair(rank, world_size, device):
    return rank

run(pair)
STEPS = [pair]
"""
    (tmp_path / "mine.py").write_text(program)
    monkeypatch.setattr(sys, "argv", ["mine.py", "--nproc", "1"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(tmp_path / "mine.py"), run_name="__main__")
    printed = "pair: skipped: it needs at least 2 ranks, this world has 1\n"
    assert (ended.value.code, capsys.readouterr().out) == (3, printed)
