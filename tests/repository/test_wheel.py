"""The wheel works without a checkout: with its lessons and their data, and nothing else."""

import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from doors import EVERY, all_expected, of_each_kind
from processes import finished
from repository import ROOT
from typer.testing import CliRunner

from collectives.backends import claims
from collectives.cli import app
from collectives.matrix import recorded
from tools.site import repository


def run(*command: object, folder: Path, status: int = 0) -> subprocess.CompletedProcess:
    """Run a command in this folder. It finds only what is in the environment of its Python."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=900,
        env=environ | {"CUDA_VISIBLE_DEVICES": ""},
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, folder=ROOT)
    (file,) = folder.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """The folder of the commands of an environment with the wheel, and with what it depends on."""
    home = tmp_path_factory.mktemp("environment")
    venv.create(home, symlinks=True)
    python = home / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    run(*pip, "install", "-q", "--no-index", "--no-deps", wheel, folder=home)
    packages = sysconfig.get_path("purelib", vars={"base": home, "platbase": home})
    # subtle: Python reads no .pth files in a folder that a .pth file names. So the checkout, which
    # is installed there in editable mode, is not found.
    Path(packages, "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    found = run(python, "-c", "import collectives; print(collectives.__file__)", folder=home)
    assert found.stdout.startswith(packages)
    return home / "bin"


def test_the_wheel_holds_the_package_and_the_lessons(wheel):
    archive = zipfile.ZipFile(wheel)
    names = archive.namelist()
    assert {name.partition("/")[0] for name in names} == {
        "collectives",
        f"{'-'.join(wheel.name.split('-')[:2])}.dist-info",
    }
    folders = ("lessons", "exercises", "examples")
    paths = [path for folder in folders for path in ROOT.glob(f"{folder}/**/*.*")]
    expected = {
        f"collectives/_course/{path.relative_to(ROOT).as_posix()}": path.read_bytes()
        for path in paths
        if path.suffix != ".pyc" and not path.name.endswith(".wrong.toml")
    }
    assert {name for name in names if name.startswith("collectives/_course/")} == expected.keys()
    assert [name for name, data in expected.items() if archive.read(name) != data] == []
    assert "collectives/py.typed" in names


LOAD_ALL = """
from collectives.course import chapters, files

for chapter in chapters.read().values():
    for lesson in chapter.lessons:
        files.load(lesson.path)
"""


@pytest.mark.slow
def test_in_an_empty_folder_it_lists_and_runs_lessons_and_tries_exercises(installed, tmp_path):
    command = installed / "collectives"
    here = CliRunner().invoke(app, ["list"]).stdout
    assert run(command, "list", folder=tmp_path).stdout == here
    run(command, "run", "mistakes/order", "route/two_copies", folder=tmp_path)
    run(installed / "python", "-c", LOAD_ALL, folder=tmp_path)
    run(command, "practice", "start", "mine", folder=tmp_path)
    solution = next(installed.parent.rglob("_course/exercises/calls/neighbours/solution.py"))
    (mine,) = Path(tmp_path, "mine").glob("*_neighbours.py")
    mine.write_text(solution.read_text())
    assert "solved" in run(command, "practice", "neighbours", folder=tmp_path / "mine").stdout


BROKEN = """\
def broken(rank, world_size, device):
    fail()  # the innermost frame is always shown


def fail():
    raise ValueError("no such thing")


STEPS = [broken]
"""


@pytest.mark.slow
def test_an_error_in_one_of_its_lessons_is_shown_with_its_line(installed, tmp_path):
    """The lessons lie in the package, whose own frames are left out."""
    (lessons,) = installed.parent.glob("lib/*/site-packages/collectives/_course/lessons")
    Path(lessons, "broken.py").write_text(BROKEN)
    command = installed / "collectives", "run", Path(lessons, "broken.py"), "-n", 1
    done = run(*command, folder=tmp_path, status=1)
    assert f'File "{lessons}/broken.py", line 2, in broken' in done.stderr


@pytest.mark.slow
def test_in_an_empty_folder_torchrun_prints_what_the_notebooks_show(installed, tmp_path):
    names = of_each_kind()
    (lessons,) = installed.parent.glob("lib/*/site-packages/collectives/_course/lessons")
    torchrun = [installed / "python", "-m", "torch.distributed.run", "--nproc-per-node", "4"]
    program = [installed / "python", "-c", EVERY, *(lessons / f"{name}.py" for name in names)]
    done = run(*torchrun, "--no-python", *program, folder=tmp_path)
    assert done.stdout == all_expected(names)


# What a notebook that is opened in Colab does first, and the imports of a lesson after it.
IN_A_NOTEBOOK = """
import sys
from IPython.core.interactiveshell import InteractiveShell

InteractiveShell.instance().run_cell(sys.argv[1]).raise_error()
from collectives import check, run

print(sys.modules["collectives"].__file__)
"""


@pytest.mark.slow
def test_the_first_cell_of_a_notebook_installs_the_package(wheel, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    home = tmp_path / "environment"
    venv.create(home, symlinks=True)
    packages = sysconfig.get_path("purelib", vars={"base": home, "platbase": home})
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if "collectives" not in path.name:  # what the wheel depends on, and nothing of it
            Path(packages, path.name).symlink_to(path)
    cell = repository.install_cell(wheel.as_uri()).source
    done = run(home / "bin" / "python", "-c", IN_A_NOTEBOOK, cell, folder=tmp_path)
    assert done.stdout.splitlines()[-1].startswith(str(home)), done.stdout
    again = run(home / "bin" / "python", "-c", IN_A_NOTEBOOK, cell, folder=tmp_path)
    assert len(again.stdout.splitlines()) == 1  # what is there is not installed again


# The backend of the page, in a file of its own. Its reduce takes the largest value, whatever is asked.
PAGE = (ROOT / "docs" / "verifying-a-backend.md").read_text("utf-8")
MINE = PAGE.partition("```python\n")[2].partition("```\n")[0]
WRONG = MINE.replace(
    "return self.gloo.reduce(",
    "opts.reduceOp = dist.ReduceOp.MAX\n        return self.gloo.reduce(",
)
ASK = ["--backend", "mine", "--import", "mine", "--world-sizes", "2"]
ASK += ["-k", "lessons or reduce and not all_reduce and not reduce_scatter"]


@pytest.fixture
def author(tmp_path) -> Path:
    """An empty folder, but for the author's backend."""
    (tmp_path / "mine.py").write_text(WRONG)
    return tmp_path


def red_rows(done: subprocess.CompletedProcess) -> list[str]:
    """Of both grids."""
    rows = [line.split() for line in done.stdout.splitlines() if line.endswith("<- red")]
    return [" ".join(row[:-2]) for row in rows]


@pytest.mark.slow
def test_the_backend_of_the_page_does_what_gloo_does(installed, tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    asked = ["--backend", "mine", "--import", "mine", "--quick", "--json", "cells.json"]
    run(installed / "collectives", "matrix", *asked, folder=tmp_path, status=1)
    found = recorded.read(tmp_path / "cells.json")
    other = [
        cell.form
        for cell in found.cells
        if cell.state != claims.expected(replace(cell, backend="gloo"), found.torch).state
    ]
    assert {*map(claims.base, other)} == {"monitored_barrier"}  # for which torch asks gloo by name


RED = ["reduce 1 works, 9 wrong", "reduce 1 failed"]


@pytest.mark.slow
def test_an_author_sees_which_call_of_his_backend_is_wrong(installed, author):
    pytest_ = [installed / "python", "-m", "pytest"]
    done = run(*pytest_, "--pyargs", "collectives.verify", *ASK, folder=author, status=1)
    assert red_rows(done) == RED, done.stdout
    assert re.search(r"^all_reduce +1 passed$", done.stdout, re.MULTILINE)
    # Who does not name it is not bothered.
    (author / "test_own.py").write_text("def test_own(): pass")
    done = run(*pytest_, "--backend", "mine", folder=author, status=4)
    assert "unrecognized arguments: --backend" in done.stderr
    assert "1 passed" in run(*pytest_, folder=author).stdout


@pytest.mark.slow
def test_in_a_checkout_the_same_tests_ask_it_and_nothing_else_runs(author):
    path = os.pathsep.join([str(author), os.environ.get("PYTHONPATH", "")])
    done = finished(["python", "-m", "pytest", "-n", 2, *ASK], 600, {"PYTHONPATH": path}, cwd=ROOT)
    assert (done.returncode, sorted(red_rows(done))) == (1, sorted(RED)), done.stdout
    assert "left out: the tests that ask no backend" in done.stdout


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--backend glo", "--backend glo: there are "),
        ("--backend mine --import not_there", "--import not_there: there is no such module"),
        ("--backend gloo --world-sizes 2,x", "--world-sizes 2,x: write whole numbers"),
    ],
)
def test_what_cannot_be_asked_is_said_in_a_sentence(options, said, capsys):
    alone = ["--noconftest", "-c", os.devnull, "-p", "collectives.verify.plugin"]
    status = pytest.main([*alone, *options.split()])
    errors = capsys.readouterr().err
    assert (status, f"ERROR: {said}" in errors) == (4, True), errors


def test_with_a_backend_only_what_asks_it_is_collected(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    pytest.main(["--collect-only", "-q", "--backend", "by_hand"])
    tests = [line for line in capsys.readouterr().out.splitlines() if "::" in line]
    assert tests
    assert all("[by_hand-cpu" in test for test in tests)
