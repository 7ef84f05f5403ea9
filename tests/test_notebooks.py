"""The notebooks match the lessons, are complete and small, and do not change if they are executed
again.

(That they print what `python` prints is shown in test_doors.py.)
"""

import asyncio
import json
import re
import sys
from importlib.metadata import version
from pathlib import Path

import nbformat
import pytest
from jupyter_client import AsyncKernelManager
from jupytext.cli import jupytext

from collectives.launcher.hosts import available
from collectives.lesson.chapters import CHAPTERS
from collectives.lesson.make import notebooks
from collectives.lesson.step import SYMPTOMS

ROOT = Path(__file__).parent.parent
LESSONS, MISTAKES = (
    [
        ROOT / "lessons" / f"{name}.py"
        for chapter in CHAPTERS.values()
        if chapter.isolated == isolated
        for name in chapter.names
    ]
    for isolated in (False, True)
)
MOST_BYTES = 320 * 1024
PINS = dict(
    line.split("==") for line in (ROOT / "constraints.txt").read_text().split() if "==" in line
)

lesson = pytest.mark.parametrize("lesson", LESSONS, ids=[path.stem for path in LESSONS])
every_file = pytest.mark.parametrize(
    "lesson", LESSONS + MISTAKES, ids=[path.stem for path in LESSONS + MISTAKES]
)


def committed(lesson: Path) -> nbformat.NotebookNode:
    return nbformat.read(notebooks.path_of(lesson), as_version=4)


def outputs(notebook: nbformat.NotebookNode) -> list:
    return [output for cell in notebook.cells for output in cell.get("outputs", ())]


def printed(notebook: nbformat.NotebookNode) -> str:
    return "".join(output.text for output in outputs(notebook) if output.output_type == "stream")


def test_every_lesson_has_its_notebook_and_no_notebook_is_left_over():
    found = [path for path in ROOT.glob("notebooks/**/*") if path.is_file()]
    assert sorted(found) == sorted(notebooks.path_of(lesson) for lesson in LESSONS + MISTAKES)


@every_file
def test_the_cells_are_those_of_the_lesson(lesson):
    def cells(notebook):
        return [(cell.id, cell.cell_type, cell.source, cell.metadata) for cell in notebook.cells]

    expected = notebooks.unexecuted(lesson)
    assert cells(committed(lesson)) == cells(expected), (
        "the lesson has changed: `make notebooks` brings its notebook up to date"
    )
    assert committed(lesson).metadata == expected.metadata


@every_file
def test_a_notebook_that_is_saved_in_jupyter_gives_back_its_lesson(lesson, tmp_path):
    """Jupyter with jupytext writes the lesson when it saves the notebook: that must not change the
    lesson.
    """
    for file in (lesson, notebooks.path_of(lesson), ROOT / "pyproject.toml"):
        copy = tmp_path / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes())
    copies = [tmp_path / file.relative_to(ROOT) for file in (lesson, notebooks.path_of(lesson))]
    jupytext(["--quiet", "--to", "py:percent", "--output", str(copies[0]), str(copies[1])])
    assert copies[0].read_text() == lesson.read_text()


@every_file
def test_it_was_executed_from_top_to_bottom_and_nothing_failed(lesson):
    notebook = committed(lesson)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    for cell in code:
        kinds = [(output.output_type, output.get("name")) for output in cell.outputs]
        runs = re.search(r"^    run\((\w+)\)$", cell.source, re.MULTILINE)
        assert kinds[:1] == ([("stream", "stdout")] if runs else [])
        assert {kind for kind, _ in kinds[1:]} <= {"display_data"}
        if runs:
            outcome = (
                "proved on all 4 ranks"
                if lesson in LESSONS
                else f"(proved on all \\d ranks|proved in a lab|{'|'.join(SYMPTOMS.values())})"
            )
            assert re.match(f"{runs[1]}: {outcome}\n", cell.outputs[0].text)


@lesson
def test_the_output_that_a_reader_predicts_is_folded_and_no_other(lesson):
    cells = committed(lesson).cells
    asked = ["**Predict first.**" in before.source for before in cells]
    assert [bool(cell.metadata.get("collapsed")) for cell in cells] == [False, *asked[:-1]]


@lesson
def test_its_first_step_is_shown_in_a_picture_with_words_for_those_who_cannot_see_it(lesson):
    first = next(
        output for output in outputs(committed(lesson)) if output.output_type == "display_data"
    )
    assert first.data["image/svg+xml"].count("<svg ") == 1
    assert re.search(r'<svg [^>]*role="img" aria-label="[^"]{40,}"', first.data["image/svg+xml"])


@every_file
def test_it_is_small(lesson):
    assert notebooks.path_of(lesson).stat().st_size < MOST_BYTES


@pytest.fixture(scope="module")
def kernel():
    """One kernel for all notebooks: each kernel imports torch twice, for itself and for its ranks."""
    kernel = AsyncKernelManager()
    yield kernel
    asyncio.run(kernel.shutdown_kernel())


@pytest.mark.slow
@every_file
def test_executed_anew_it_prints_the_same_and_nothing_changes(lesson, kernel):
    if lesson.parent.name == "machines" and available.missing():
        pytest.skip(available.missing())
    fresh = asyncio.run(notebooks.executed(lesson, kernel))
    assert printed(fresh) == printed(committed(lesson))
    pinned = all(
        version(package) == PINS[package] for package in ("torch", "matplotlib", "nbformat")
    )
    if sys.platform == "linux" and pinned:
        assert nbformat.writes(fresh) + "\n" == notebooks.path_of(lesson).read_text()


def test_what_a_library_writes_on_stderr_is_no_result(tmp_path):
    (tmp_path / "lessons").mkdir()
    noisy = tmp_path / "lessons" / "noisy.py"
    noisy.write_text(
        "# %%\nimport os, sys\nprint('one')\nprint('progress', file=sys.stderr)\nos.write(2, b'gloo')\nprint('two')\n"
    )
    (stream,) = outputs(asyncio.run(notebooks.executed(noisy)))
    assert (stream.name, stream.text) == ("stdout", "one\ntwo\n")


def test_nothing_in_a_notebook_tells_when_or_by_which_python_it_was_executed():
    for lesson in LESSONS + MISTAKES:
        text = json.dumps([cell.metadata for cell in committed(lesson).cells]) + json.dumps(
            committed(lesson).metadata
        )
        assert not re.search(r"execution|version|iopub|shell", text)
