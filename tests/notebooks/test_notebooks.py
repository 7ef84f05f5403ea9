"""The notebooks match the lessons, are complete and small, and do not change if they are executed
again.

(That they print what `python` prints is shown in test_doors.py.)
"""

import asyncio
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from html import unescape
from importlib.metadata import version
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

import nbformat
import pytest
from jupytext.cli import jupytext
from lesson_source import committed, printed_by
from repository import ROOT

from collectives.course import chapters, files
from collectives.lab import available
from tools import notebooks
from tools.ideas import IDEAS

LESSONS = [lesson.path for chapter in chapters.read().values() for lesson in chapter.lessons]
PINS = dict(
    line.split("==") for line in (ROOT / "constraints.txt").read_text().split() if "==" in line
)


FOLDED_PICTURE = re.compile(r'<img alt="([^"]*)" src="data:image/svg\+xml,([^"]*)">')


def outputs(notebook: nbformat.NotebookNode) -> list:
    return [output for cell in notebook.cells for output in cell.get("outputs", ())]


def printed(notebook: nbformat.NotebookNode) -> str:
    return "".join(printed_by(cell) for cell in notebook.cells if cell.get("outputs"))


def test_every_lesson_has_its_notebook_and_no_notebook_is_left_over():
    found = [path for path in ROOT.glob("notebooks/**/*") if path.is_file()]
    assert sorted(found) == sorted(notebooks.path_of(lesson) for lesson in LESSONS)


def cells(notebook: nbformat.NotebookNode) -> list[tuple]:
    return [(cell.id, cell.cell_type, cell.source, cell.metadata) for cell in notebook.cells]


def test_the_cells_are_those_of_the_lesson():
    changed = [
        lesson.stem
        for lesson in LESSONS
        for expected in [notebooks.unexecuted(lesson)]
        if cells(committed(lesson)) != cells(expected)
        or committed(lesson).metadata != expected.metadata
    ]
    assert changed == [], "`make notebooks` brings their notebooks up to date"


@pytest.mark.slow
def test_a_notebook_that_is_saved_in_jupyter_gives_back_its_lesson(tmp_path):
    """Jupyter with jupytext writes the lesson when it saves the notebook: that must not change the
    lesson.
    """
    changed = []
    for lesson in LESSONS:
        for file in (lesson, notebooks.path_of(lesson), ROOT / "pyproject.toml"):
            copy = tmp_path / file.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(file.read_bytes())
        copies = [tmp_path / file.relative_to(ROOT) for file in (lesson, notebooks.path_of(lesson))]
        jupytext(["--quiet", "--to", "py:percent", "--output", str(copies[0]), str(copies[1])])
        if copies[0].read_text() != lesson.read_text():
            changed.append(lesson.stem)
    assert changed == []


def test_what_a_reader_is_asked_to_find_out_is_folded_and_nothing_else():
    """What is printed above a folded answer, and by the cure of a mistake: also when it runs anew."""
    for lesson in LESSONS:
        cells = committed(lesson).cells
        for step, run, below in zip(cells, cells[1:], cells[2:], strict=False):
            if run.get("outputs"):
                asked = below.source.startswith("<details>") or step.source.startswith("@cure(")
                pages = [one.get("data", {}).get("text/html", "") for one in run.outputs]
                folded = [page[:18] for page in pages] == ["<details><summary>"]
                assert folded == asked == run.source.endswith(", folded=True)"), run.id


def test_jupyterlab_shows_every_picture_of_a_notebook_that_it_does_not_trust():
    """It drops SVG, and takes the PNG. Behind a click stands an <img>, which it shows."""
    for lesson in LESSONS:
        for output in outputs(committed(lesson)):
            data = output.get("data", {})
            assert ("image/svg+xml" in data) == ("image/png" in data), lesson
            assert "<svg" not in data.get("text/html", ""), lesson
            assert "text/plain" in data or not data, lesson


def test_every_picture_has_a_title_in_words_which_the_page_writes_below_it():
    """So it can be read on a telephone, where a drawing shrinks to a third."""
    for lesson in LESSONS:
        notebook = committed(lesson)
        pages = [output.get("data", {}).get("text/html", "") for output in outputs(notebook)]
        titles = [title for page in pages for title in re.findall(r"^<p><b>(.+?)\.</b>", page, re.M)]
        assert len(titles) == len([*pictures(notebook)]), lesson
        assert [title for title in titles if len(title.split()) < 4] == [], lesson


def test_a_picture_of_an_idea_stands_open_under_it():
    ideas = [
        cell.source
        for lesson in LESSONS
        for cell in committed(lesson).cells
        if cell.source.startswith("## The idea")
    ]
    shown = [name for idea in ideas for name in re.findall(r"docs/ideas/(\w+)\.svg", idea)]
    assert sorted(shown) == sorted(IDEAS)


def pictures(notebook: nbformat.NotebookNode) -> Iterator[tuple[str, str]]:
    """The pictures, and the words that stand for them on a page without pictures."""
    for output in outputs(notebook):
        data = output.get("data", {})
        for words, picture in FOLDED_PICTURE.findall(data.get("text/html", "")):
            yield unquote(unescape(picture)), unescape(words)
        if "image/svg+xml" in data:
            yield data["image/svg+xml"], output.metadata["image/png"]["alt"]


def test_every_notebook_is_small_and_its_pictures_have_words_for_those_who_cannot_see_them():
    for lesson in LESSONS:
        assert notebooks.path_of(lesson).stat().st_size < 320 * 1024, lesson
        for picture, words in pictures(committed(lesson)):
            assert ElementTree.fromstring(picture).get("role") == "img", lesson
            assert ElementTree.fromstring(picture).get("aria-label") == words, lesson
            assert len(words) >= 40, lesson


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    """One kernel for each folder: a kernel imports torch twice, for itself and for its ranks.

    They listen at files: a port that is free when Jupyter asks may be another test's when it listens.
    """
    from jupyter_client import AsyncKernelManager

    def start():
        return AsyncKernelManager(transport="ipc", ip=str(tmp_path_factory.mktemp("kernel") / "at"))

    kernels = defaultdict(start)
    yield kernels
    for kernel in kernels.values():
        asyncio.run(kernel.shutdown_kernel())


@pytest.mark.slow
@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_executed_anew_it_prints_the_same_and_nothing_changes(lesson, kernels):
    if lesson.parent.name == "machines" and available.missing():
        pytest.skip(available.missing())
    try:
        fresh = asyncio.run(notebooks.executed(lesson, kernels[lesson.parent]))
    except RuntimeError:
        del kernels[lesson.parent]  # it has died: the next lesson of the folder gets another one
        raise
    assert printed(fresh) == printed(committed(lesson))
    pinned = all(
        version(package) == PINS[package] for package in ("torch", "matplotlib", "nbformat")
    )
    if sys.platform == "linux" and pinned:
        assert without_pixels(fresh) == without_pixels(committed(lesson))


def without_pixels(notebook: nbformat.NotebookNode) -> str:
    """Another processor may round the grey of a letter's edge in another way."""
    for output in outputs(notebook):
        output.get("data", {}).pop("image/png", None)
    return nbformat.writes(notebook)
