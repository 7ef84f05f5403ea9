"""The notebooks match the lessons, are complete and small, and do not change if they are executed
again.

(That they print what `python` prints is shown in test_doors.py.)
"""

import asyncio
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

import nbformat
import pytest
from jupyter_client import AsyncKernelManager
from jupytext.cli import jupytext

from collectives.course import chapters
from collectives.course.marks import SYMPTOMS
from collectives.lab import available
from tools import notebooks

ROOT = Path(__file__).parent.parent
LESSONS, MISTAKES = (
    [
        ROOT / "lessons" / f"{name}.py"
        for chapter in chapters.read().values()
        if chapter.isolated == isolated
        for name in chapter.names
    ]
    for isolated in (False, True)
)
MOST_BYTES = 320 * 1024
PINS = dict(
    line.split("==") for line in (ROOT / "constraints.txt").read_text().split() if "==" in line
)

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


def cells(notebook: nbformat.NotebookNode) -> list[tuple]:
    return [(cell.id, cell.cell_type, cell.source, cell.metadata) for cell in notebook.cells]


def test_the_cells_are_those_of_the_lesson():
    changed = [
        lesson.stem
        for lesson in LESSONS + MISTAKES
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
    for lesson in LESSONS + MISTAKES:
        for file in (lesson, notebooks.path_of(lesson), ROOT / "pyproject.toml"):
            copy = tmp_path / file.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(file.read_bytes())
        copies = [tmp_path / file.relative_to(ROOT) for file in (lesson, notebooks.path_of(lesson))]
        jupytext(["--quiet", "--to", "py:percent", "--output", str(copies[0]), str(copies[1])])
        if copies[0].read_text() != lesson.read_text():
            changed.append(lesson.stem)
    assert changed == []


def faults_of_outputs(lesson: Path) -> Iterator[str]:
    """It was executed from top to bottom, nothing failed, and each run printed its result."""
    notebook = committed(lesson)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    if [cell.execution_count for cell in code] != list(range(1, len(code) + 1)):
        yield "it was not executed from top to bottom"
    outcome = f"proved on all \\d ranks|proved in a lab|{'|'.join(SYMPTOMS.values())}"
    if lesson in LESSONS:
        outcome = "(?:proved|computed|looked up) on all 4 ranks"
    for cell in code:
        kinds = [(output.output_type, output.get("name")) for output in cell.outputs]
        runs = re.search(r"^    run\((\w+)\)$", cell.source, re.MULTILINE)
        if kinds[:1] != ([("stream", "stdout")] if runs else []):
            yield f"cell {cell.id} prints {kinds[:1]}"
        elif runs and not re.match(f"{runs[1]}: ({outcome})\n", cell.outputs[0].text):
            yield f"{runs[1]}: {cell.outputs[0].text[:60]}"
        if not {kind for kind, _ in kinds[1:]} <= {"display_data"}:
            yield f"cell {cell.id} shows {kinds[1:]}"


def faults_of_folds(lesson: Path) -> Iterator[str]:
    """The output that a reader predicts is folded, and no other."""
    cells = committed(lesson).cells
    asked = ["**Predict first.**" in before.source for before in cells]
    if [bool(cell.metadata.get("collapsed")) for cell in cells] != [False, *asked[:-1]]:
        yield "another output is folded than the one that a reader predicts"


def faults_of_pictures(lesson: Path) -> Iterator[str]:
    """A lesson's first step has a picture, with words for those who cannot see it."""
    shown = [one for one in outputs(committed(lesson)) if one.output_type == "display_data"]
    pictures = [ElementTree.fromstring(one.data["image/svg+xml"]) for one in shown]
    # In launching, processes meet, and in threads, each rank works alone: no data move.
    if lesson in LESSONS and not pictures and lesson.stem not in ("launching", "threads"):
        yield "it has no picture"
    for picture in pictures:
        if picture.get("role") != "img" or len(picture.get("aria-label", "")) < 40:
            yield "a picture has no words"


@pytest.mark.parametrize(
    ("rule", "lessons"),
    [
        (faults_of_outputs, LESSONS + MISTAKES),
        (faults_of_folds, LESSONS),
        (faults_of_pictures, LESSONS + MISTAKES),
    ],
    ids=lambda rule: getattr(rule, "__name__", ""),
)
def test_no_notebook_has(rule, lessons):
    found = [f"{lesson.stem}: {fault}" for lesson in lessons for fault in rule(lesson)]
    assert not found, "\n".join(found)


def test_every_notebook_is_small():
    sizes = {lesson.stem: notebooks.path_of(lesson).stat().st_size for lesson in LESSONS + MISTAKES}
    assert {name: size for name, size in sizes.items() if size > MOST_BYTES} == {}


@pytest.fixture(scope="module")
def kernels():
    """One kernel for each folder: a kernel imports torch twice, for itself and for its ranks."""
    kernels = defaultdict(AsyncKernelManager)
    yield kernels
    for kernel in kernels.values():
        asyncio.run(kernel.shutdown_kernel())


@pytest.mark.slow
@every_file
def test_executed_anew_it_prints_the_same_and_nothing_changes(lesson, kernels):
    if lesson.parent.name == "machines" and available.missing():
        pytest.skip(available.missing())
    fresh = asyncio.run(notebooks.executed(lesson, kernels[lesson.parent]))
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
