"""The wheel works without a checkout: with its lessons and their data, and nothing else."""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from test_doors import EVERY, all_expected
from typer.testing import CliRunner

from collectives.cli import app
from collectives.course import chapters

ROOT = Path(__file__).parent.parent


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
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0] for name in names} == {
        "collectives",
        f"{'-'.join(wheel.name.split('-')[:2])}.dist-info",
    }
    folders = ("lessons", "exercises", "examples")
    paths = [path for folder in folders for path in ROOT.glob(f"{folder}/**/*.*")]
    expected = {
        f"collectives/_course/{path.relative_to(ROOT).as_posix()}"
        for path in paths
        if path.suffix != ".pyc"
    }
    assert {name for name in names if name.startswith("collectives/_course/")} == expected
    assert "collectives/py.typed" in names


@pytest.mark.slow
def test_in_an_empty_folder_it_lists_and_runs_lessons_and_tries_exercises(installed, tmp_path):
    command = installed / "collectives"
    here = CliRunner().invoke(app, ["list"]).stdout
    assert run(command, "list", folder=tmp_path).stdout == here
    run(command, "run", "mistakes/order", folder=tmp_path)
    run(command, "practice", "start", "mine", folder=tmp_path)
    solution = next(installed.parent.rglob("_course/exercises/calls/neighbours/solution.py"))
    Path(tmp_path, "mine", "calls", "neighbours.py").write_text(solution.read_text())
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
@pytest.mark.parametrize("chapter", ["calls", "training", "model_parallel", "algorithms"])
def test_in_an_empty_folder_torchrun_prints_what_every_notebook_shows(installed, tmp_path, chapter):
    names = chapters.read()[chapter].names
    (lessons,) = installed.parent.glob("lib/*/site-packages/collectives/_course/lessons")
    torchrun = [installed / "python", "-m", "torch.distributed.run", "--nproc-per-node", "4"]
    program = [installed / "python", "-c", EVERY, *(lessons / f"{name}.py" for name in names)]
    done = run(*torchrun, "--no-python", *program, folder=tmp_path)
    assert done.stdout == all_expected(names)
