"""A chapter.toml is all that `list`, `run` and the tests need to know a chapter."""

import multiprocessing
import re
import shlex
import subprocess
import sys
import tomllib

import pytest
from processes import started
from typer.testing import CliRunner

from collectives.cli import app
from collectives.course import chapters, files, marks
from collectives.course.runner import run_and_print
from collectives.course.show import Display
from collectives.launcher.world import World

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
    for chapter, paragraph in zip(chapters.read().values(), paragraphs, strict=True):
        title, *lines = paragraph.splitlines()
        assert title == f"{chapter.name}: {chapter.title}"
        for lesson, line in zip(chapter.lessons, lines, strict=True):
            assert line.split() == [lesson.name, *lesson.summary.split()]


def test_list_shows_one_chapter_and_names_the_nearest_to_one_that_is_unknown():
    lines = collectives("list", "mistakes").stdout.splitlines()
    names = chapters.read()["mistakes"].names
    assert [line.split()[0] for line in lines] == ["mistakes:", *names]
    result = collectives("list", "mistake")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "did you mean 'mistakes'?" in result.stderr
    assert f"The chapters are {', '.join(chapters.read())}." in result.stderr


def test_list_neither_imports_torch_nor_starts_the_server_of_the_ranks():
    code = """
import sys, psutil
from typer.testing import CliRunner
from collectives.cli import app
assert CliRunner().invoke(app, ["list"]).exit_code == 0
print("torch" in sys.modules, psutil.Process().children())
"""
    command = [sys.executable, "-c", code]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert answer.stdout == "False []\n", answer.stderr


IMPORTS = """
from collectives import run, digits
import sys, psutil
print("torch" in sys.modules, psutil.Process().children() != [])
raise ImportError
import collectives, torch
"""


@pytest.mark.parametrize(
    ("words", "is_started"),
    [
        (["-c", IMPORTS], False),
        (["mine.py"], True),
        (["-m", "collectives", "run", "mine.py"], True),
    ],
    ids=["import", "lesson", "run"],
)
def test_the_server_of_the_ranks_starts_before_torch_and_only_where_lessons_run(
    tmp_path, words, is_started
):
    """A file that cannot be loaded: no rank is started."""
    (tmp_path / "mine.py").write_text(f"{IMPORTS}\nSTEPS = []\n")
    with started(shlex.join(["python", *words]), tmp_path) as process:
        line = process.stdout.readline()  # the server goes on until it has imported torch
    has_server = "forkserver" in multiprocessing.get_all_start_methods()
    assert line == f"False {is_started and has_server}\n"


def test_run_takes_lessons_chapters_and_paths_in_the_order_in_which_they_are_named(mine):
    found = files.choose(["mistakes/order", "calls", str(mine), "mistakes"], every=False)
    known = chapters.read()
    calls, mistakes = files.of_chapter(known["calls"]), files.of_chapter(known["mistakes"])
    assert found == [files.find("mistakes/order"), *calls, mine, *mistakes]


def test_a_lesson_is_also_found_by_the_name_that_it_has_in_its_chapter():
    assert files.find("sampler") == files.find("training/sampler")
    with pytest.raises(ValueError, match="did you mean 'training/sampler'"):
        files.find("samplr")


def test_all_means_every_lesson_that_runs_in_the_readers_own_world():
    """A chapter that starts worlds of its own, or that needs an extra, must be named."""
    known = chapters.read()
    taken = [one for one in known.values() if not (one.isolated or one.extra)]
    assert files.choose([], every=True) == [path for one in taken for path in files.of_chapter(one)]
    names = {one.name for one in taken}
    assert {"start", "calls"} <= names <= known.keys() - {"mistakes", "training", "model_parallel"}


def test_the_route_is_named_in_the_chapters_file_and_run_takes_it_in_order():
    names = tomllib.loads((chapters.folder() / "chapter.toml").read_text("utf-8"))["route"]
    assert files.choose([], every=False, route=True) == [files.find(name) for name in names]


def test_every_lesson_and_every_folder_of_lessons_is_in_the_order():
    root = files.find("start").parent
    listed = {lesson.path for chapter in chapters.read().values() for lesson in chapter.lessons}
    lessons = {path for path in root.rglob("*.py") if "\nSTEPS = [" in path.read_text("utf-8")}
    assert lessons == listed
    order = tomllib.loads((root / "chapter.toml").read_text("utf-8"))["order"]
    assert list(chapters.read()) == order


def test_every_summary_is_one_sentence_that_fits_a_row():
    for chapter in chapters.read().values():
        for lesson in chapter.lessons:
            assert re.fullmatch(r"[^*\n\[\]]{20,140}\.", lesson.summary), lesson.name


@pytest.mark.parametrize(
    ("toml", "fault"),
    [
        ("lessons = []", "missing 1 required keyword-only argument: 'title'"),
        ('title = "x"\nlessons = ["gone"]', "there is no file"),
        ('title = "x"\nlessons = []\ncolour = "red"', "unexpected keyword argument 'colour'"),
        ("title = ", "Invalid value"),
    ],
    ids=["no_title", "no_file", "unknown_key", "no_toml"],
)
def test_a_chapter_that_is_not_right_is_named_with_its_file(tmp_path, toml, fault):
    (tmp_path / "chapter.toml").touch()
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "chapter.toml").write_text(toml)
    with pytest.raises(ValueError, match=fault) as caught:
        chapters.read(tmp_path)
    assert str(tmp_path / "new" / "chapter.toml") in str(caught.value)


def test_a_step_in_fresh_ranks_starts_a_world_of_its_own():
    @marks.needs(ranks=3, fresh=True)
    def fresh(rank, world_size, device): ...

    assert marks.world_of(fresh) == marks.WorldSpec(3, isolated=True, fresh=True)


def test_the_order_of_two_marks_does_not_matter():
    first, second = marks.needs(ranks=2), marks.mistake("dies", ranks=2)
    worlds = [marks.world_of(first(second(lambda: 0))), marks.world_of(second(first(lambda: 0)))]
    assert worlds == [marks.WorldSpec(2, isolated=True, symptom="dies")] * 2


@pytest.mark.parametrize(
    ("one", "another"),
    [
        (marks.needs(ranks=2), marks.mistake("dies", ranks=3)),
        (marks.computed, marks.looked_up),
    ],
    ids=["ranks", "how_known"],
)
def test_marks_that_contradict_each_other_are_refused_in_both_orders(one, another):
    for inner, outer in ((one, another), (another, one)):

        def step(rank, world_size, device): ...

        with pytest.raises(ValueError, match="two marks of step contradict each other"):
            outer(inner(step))


def test_run_says_that_a_step_is_computed_or_looked_up(capsys):
    @marks.needs(ranks=2)
    @marks.computed
    def two_and_two(rank, world_size, device):
        return 2 + 2

    @marks.looked_up
    @marks.needs(ranks=2)
    def speed_of_light(rank, world_size, device):
        return 299_792_458

    for step in (two_and_two, speed_of_light):
        run_and_print(step, Display(), World.chosen(2))
    titles = [line for line in capsys.readouterr().out.splitlines() if line[0] != " "]
    assert titles == [
        "two_and_two: computed on all 2 ranks",
        "speed_of_light: looked up on all 2 ranks",
    ]


def test_a_lesson_does_not_stay_among_the_modules(mine):
    module = files.load(files.find(str(mine)))
    assert module.__name__ == "mine"
    assert "mine" not in sys.modules


def test_the_lessons_of_the_wheel_come_first_then_those_beside_the_package(tmp_path, monkeypatch):
    monkeypatch.setattr(chapters, "_PACKAGE", tmp_path / "collectives")
    assert chapters.folder() == tmp_path / "lessons"
    installed = tmp_path / "collectives" / "_course" / "lessons"
    installed.mkdir(parents=True)
    assert chapters.folder() == installed


def test_another_checkout_is_taken_if_it_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(chapters.CHECKOUT, ".")
    said = collectives("list").stderr
    assert said.endswith("COLLECTIVES_CHECKOUT=. is no checkout: it has no lessons/chapter.toml.\n")
    (tmp_path / "lessons").mkdir()
    (tmp_path / "lessons" / "chapter.toml").touch()
    assert chapters.folder() == tmp_path / "lessons"
