"""`--import MODULE`: a backend that nobody here knows runs the lessons, at each of their doors."""

import re
import runpy
import sys

import pytest
from processes import finished
from repository import SUPPORT
from typer.testing import CliRunner

from collectives.backends import availability
from collectives.cli import app
from collectives.course import files


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder, and a process that has imported no backend yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(availability, "imported", [])
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


MISSING = "there is no such module, here or where this Python looks for packages"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("not_there", None, f"{MISSING}."),
        ("../x", None, "that is no name of a module: write it as behind `import` in Python."),
        ("a_file.py", "", f"{MISSING}: leave out the ending, as in a_file."),
        ("lacks_one", "import not_there", "its import raised ModuleNotFoundError: No module"),
        (
            "divides",
            "\n1 / 0",
            "raised ZeroDivisionError: division by zero ({here}/divides.py, line 2)",
        ),
        (
            "leaves",
            "import sys\nsys.exit('no\\nlicence')",
            "its import raised SystemExit: no licence",
        ),
        ("garbled", "def (", "its import raised SyntaxError: invalid syntax (garbled.py, line 1)"),
        ("idle", "x = 1", "it registers no backend: it should call torch.distributed.Backend.regi"),
    ],
)
def test_a_module_that_gives_no_backend_is_refused_in_a_sentence(name, text, said, here):
    if text is not None:
        (here / f"{name.removesuffix('.py')}.py").write_text(text)
    with pytest.raises(ValueError, match=f"^--import {re.escape(name)}: ") as refused:
        availability.import_modules([name])
    assert said.format(here=here) in str(refused.value)
    assert "\n" not in str(refused.value)
    assert availability.imported == []


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("run", "all_reduce"),
        ("run", "training/threads --wrong"),
        ("bench bus", ""),
        ("matrix", "--quick"),
    ],
)
def test_every_command_refuses_it_with_status_2(command, options, here):
    words = f"{command} {options} --import not_there".split()
    answer = CliRunner().invoke(app, words)
    assert (answer.exit_code, answer.stdout) == (2, "")
    assert answer.stderr == f"collectives {command}: --import not_there: {MISSING}.\n"


def test_a_lesson_refuses_it_with_status_2(here, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["all_reduce.py", "--import", "not_there"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(files.find("all_reduce")), run_name="__main__")
    output, errors = capsys.readouterr()
    assert (ended.value.code, output) == (2, "")
    assert f"--import not_there: {MISSING}" in errors


def test_ranks_import_it_too(here):
    """Also if the same module is named twice, or was imported before."""
    words = ["run", "barrier", "-n", "1", "--backend", "broken", "--import", "refusing_backends"]
    answer = CliRunner().invoke(app, [*words, "--import", "refusing_backends"])
    assert "module 'torch.distributed' has no attribute 'no_such_transport'" in answer.stderr
    assert answer.exit_code == 1


@pytest.mark.slow
@pytest.mark.parametrize("starter", ["python", "torchrun --nproc-per-node 4"])
def test_a_lesson_runs_on_it(starter):
    options = "--backend lying --import lying_backend"
    done = finished(f"{starter} {files.find('all_reduce')} {options}", cwd=SUPPORT)
    steps = len(files.load(files.find("all_reduce")).STEPS)
    assert (done.stdout.count("proved on all 4 ranks"), done.returncode) == (steps, 0), done.stderr


@pytest.mark.slow
def test_an_average_that_sums_is_found_by_the_cells_that_are_tried_without_being_asked_for():
    options = "--backend lying --import lying_backend --world-sizes 2"
    done = finished(
        f"python -m pytest -p no:cacheprovider --pyargs collectives.verify {options} "
        "-k 'test_calls and all_reduce'",
        cwd=SUPPORT,
    )
    assert "all_reduce(AVG, float32) on lying/cpu, 2 ranks" in done.stdout, done.stdout
