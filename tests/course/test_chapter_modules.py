"""A chapter from a new folder, with a module that is no lesson, works at every door.

Two chapters have a module of the same name.
"""

import asyncio
import sys
from pathlib import Path

import pytest
from our_backends import needs_mpi
from processes import finished

from collectives import launch
from collectives.backends import availability
from collectives.course import chapters, files
from tools import notebooks

LESSON = '''\
# %% [markdown]
"""
# {name}

Every rank multiplies its number.
"""

# %%
from collectives import check, run
import torch
import model
from model import Model


# %%
def {name}(rank, world_size, device):
    got = Model(rank).times(torch.ones(2, device=device))
    check(got, torch.full((2,), {factor} * rank), "times")
    return {{"got": got, "factor": model.FACTOR}}


# %%
if __name__ == "__main__":
    run({name})

# %%
STEPS = [{name}]
'''
MODULE = """\
from dataclasses import dataclass

FACTOR = {factor}


@dataclass
class Model:
    rank: int

    def times(self, x):
        return FACTOR * self.rank * x
"""
TOML = 'title = "A chapter of {name}"\nlessons = ["{name}"]\n'
CHAPTERS = {"first": ("doubled", 2.0), "second": ("tripled", 3.0)}


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("checkout")
    (root / "lessons").mkdir()
    (root / "lessons" / "chapter.toml").write_text('order = ["second"]\n')
    for chapter, (name, factor) in CHAPTERS.items():
        folder = root / "lessons" / chapter
        folder.mkdir()
        (folder / "chapter.toml").write_text(TOML.format(name=name))
        (folder / f"{name}.py").write_text(LESSON.format(name=name, factor=factor))
        (folder / "model.py").write_text(MODULE.format(factor=factor))
    return root


TABLES = {
    name: f"""\
{name}: proved on all 2 ranks
  rank  got         factor
  0     [0.0, 0.0]  {factor}
  1     [{factor}, {factor}]  {factor}
"""
    for name, factor in CHAPTERS.values()
}


def printed(*command, folder: Path, **environ: str) -> str:
    """What a command prints that is started in this folder."""
    as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    done = finished(command, cwd=folder, env=as_root | environ)
    assert done.returncode == 0, done.stderr
    return done.stdout


DOORS = {
    "torchrun": "torchrun --nproc-per-node 2",
    "mpiexec": f"{availability.mpiexec()} -n 2 python",
}


@pytest.fixture
def lesson(checkout) -> Path:
    return checkout / "lessons" / "second" / "tripled.py"


@pytest.mark.parametrize(
    "door",
    [
        pytest.param("torchrun", marks=pytest.mark.slow),
        pytest.param("mpiexec", marks=needs_mpi),
    ],
)
def test_a_door_runs_it(lesson, tmp_path, door):
    assert printed(*DOORS[door].split(), lesson, folder=tmp_path) == TABLES["tripled"]


@pytest.mark.slow
def test_the_command_lists_and_runs_both_chapters_in_one_process(checkout, tmp_path):
    named = {"folder": tmp_path, chapters.CHECKOUT: str(checkout)}
    listed = printed("collectives", "list", **named)
    assert listed == (
        "second: A chapter of tripled\n  second/tripled  Every rank multiplies its number.\n\n"
        "first: A chapter of doubled\n  first/doubled   Every rank multiplies its number.\n"
    )
    text = printed("collectives", "run", "first", "second/tripled", "-n", 2, **named)
    assert text.startswith(TABLES["doubled"] + TABLES["tripled"])


@pytest.mark.slow
def test_a_notebook_runs_it_in_its_own_folder(lesson, checkout, monkeypatch):
    monkeypatch.setenv(chapters.CHECKOUT, str(checkout))
    notebook = asyncio.run(notebooks.executed(lesson))
    text = "".join(output.text for cell in notebook.cells for output in cell.get("outputs", ()))
    assert "  3     [9.0, 9.0]  3.0\n" in text


def test_launch_runs_the_steps_of_both(checkout):
    for chapter, (name, factor) in CHAPTERS.items():
        (step,) = files.load(checkout / "lessons" / chapter / f"{name}.py").STEPS
        assert [result["factor"] for result in launch(step, 2)] == [factor] * 2
    assert "model" not in sys.modules
