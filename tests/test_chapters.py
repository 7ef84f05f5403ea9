"""The registry of chapters is all that `list`, `run` and the tests need to know a lesson."""

import multiprocessing
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from collectives.cli import app
from collectives.lesson import chapters, files, step
from collectives.lesson.chapters import CHAPTERS

LESSON = """
def total(rank, world_size, device):
    return rank


STEPS = [total]
"""


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(LESSON)
    return path


def collectives(*words):
    """The command, in this process: what it printed, and its exit status."""
    return CliRunner().invoke(app, [str(word) for word in words])


def test_list_shows_every_chapter_with_its_lessons_in_reading_order():
    paragraphs = collectives("list").stdout.split("\n\n")
    for chapter, paragraph in zip(CHAPTERS.values(), paragraphs, strict=True):
        title, *lines = paragraph.splitlines()
        assert title == f"{chapter.name}: {chapter.title}"
        for name, lesson, line in zip(chapter.names, chapter.lessons, lines, strict=True):
            assert line.split() == [name, *lesson.summary.split()]


def test_list_shows_one_chapter():
    chapter = CHAPTERS["mistakes"]
    lines = collectives("list", "mistakes").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["mistakes:", *chapter.names]


def test_status_2_for_a_list_of_an_unknown_chapter_with_the_nearest():
    result = collectives("list", "mistake")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "did you mean 'mistakes'?" in result.stderr
    assert (
        "The chapters are start, collectives, mistakes, training, algorithms, machines, myths."
        in result.stderr
    )


def test_list_neither_imports_torch_nor_starts_the_server_of_the_ranks():
    code = """
import sys, psutil
from typer.testing import CliRunner
from collectives.cli import app
assert CliRunner().invoke(app, ["list"]).exit_code == 0
print("torch" in sys.modules, psutil.Process().children())
import collectives.lesson.runner  # as a lesson does: this shows that we would have noticed
print(psutil.Process().children() != [])
"""
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
    )
    has_server = "forkserver" in multiprocessing.get_all_start_methods()
    assert answer.stdout == f"False []\n{has_server}\n", answer.stderr


def test_run_takes_lessons_chapters_and_paths_in_the_order_in_which_they_are_named(mine):
    found = files.choose(["mistakes/order", "collectives", str(mine), "mistakes"], every=False)
    twelve, mistakes = (
        [lesson.name for lesson in CHAPTERS[name].lessons] for name in ("collectives", "mistakes")
    )
    assert [path.stem for path in found] == ["order", *twelve, "mine", *mistakes]
    assert all(path.is_file() for path in found)


def test_all_means_every_lesson_that_runs_in_the_readers_own_world():
    found = [path.stem for path in files.choose([], every=True)]
    assert found == ["start", *(lesson.name for lesson in CHAPTERS["collectives"].lessons)]
    assert len(found) == 13


def test_a_chapter_is_added_by_one_record(tmp_path, monkeypatch):
    """Its lessons are listed, found and run."""
    (tmp_path / "lessons" / "training").mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "collectives"\n')
    (tmp_path / "lessons" / "training" / "ddp.py").write_text(LESSON)
    lessons = (chapters.Lesson("ddp", "Every rank has the same gradients."),)
    added = chapters.Chapter("training", "Models on many ranks", "training", lessons)
    monkeypatch.setitem(CHAPTERS, "training", added)
    monkeypatch.chdir(tmp_path)
    assert "  training/ddp  Every rank has the same" in collectives("list", "training").stdout
    assert "did you mean 'training/ddp'?" in collectives("run", "training/dp").stderr
    result = collectives("run", "training", "-n", 1)
    assert (result.exit_code, "total: proved on 1 rank" in result.stdout) == (0, True)
    assert "ddp (1 of 1)  Every rank has the same gradients." in result.stderr


@pytest.mark.parametrize("ranks", [0, True, "2"])
def test_a_step_that_needs_no_number_of_ranks_is_refused(ranks):
    with pytest.raises(ValueError, match="is not a number of ranks"):
        step.needs(ranks=ranks)


def test_a_step_in_fresh_ranks_starts_a_world_of_its_own():
    @step.needs(ranks=3, fresh=True)
    def fresh(rank, world_size, device): ...

    @step.needs(ranks=3)
    def plain(rank, world_size, device): ...

    assert step.world_of(fresh) == step.WorldSpec(3, isolated=True, fresh=True)
    assert step.world_of(plain) == step.WorldSpec(3)


def test_a_lesson_does_not_stay_among_the_modules(mine):
    module = files.load(files.find(str(mine)))
    assert module.__name__ == "mine"
    assert "mine" not in sys.modules


def test_lessons_come_from_the_checkout_that_one_stands_in(tmp_path, monkeypatch):
    inside = tmp_path / "lessons" / "deeper"
    inside.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "collectives"\n')
    monkeypatch.chdir(inside)
    assert files.folder() == tmp_path / "lessons"


def test_another_project_with_a_folder_of_lessons_is_no_checkout(tmp_path):
    (tmp_path / "lessons").mkdir()
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "piano"\n')
    assert files.folder(tmp_path) != tmp_path / "lessons"


def test_outside_a_checkout_the_lessons_of_the_wheel_come_first_then_those_beside_the_package(
    tmp_path, monkeypatch
):
    package = tmp_path / "site" / "collectives"
    package.mkdir(parents=True)
    monkeypatch.setattr(files, "_PACKAGE", package)
    assert files.folder(tmp_path) == tmp_path / "site" / "lessons"
    (package / "lessons").mkdir()
    assert files.folder(tmp_path) == package / "lessons"
