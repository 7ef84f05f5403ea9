"""The text of a lesson, and its parts."""

import ast
import functools
import re
from functools import cached_property
from html import unescape
from pathlib import Path
from typing import NamedTuple

import jupytext
import nbformat

from collectives.course import chapters, files
from tools import notebooks

# The sections for what the lesson says without having run it.
NOT_RUN = ("On GPUs", "Documented, not run")
# The first lessons on calls show the signature, and no table: the output of the first step is there.
FIRST_CALLS = chapters.read()["calls"].names[:5]
# The lessons on training whose tests are not slow.
QUICK = [f"training/{name}" for name in ("shards", "buckets", "accumulation")]
ANSWER = "<details><summary>Answer</summary>\n\n"


class Prediction(NamedTuple):
    """A "Predict first": the step, its part of the lesson up to the answer, and the answer."""

    step: str
    before: str
    answer: str


def committed(lesson: Path) -> nbformat.NotebookNode:
    """The notebook of this lesson, as it lies in the repository."""
    path = notebooks.path_of(lesson)
    assert path.exists(), f"{path} is not there: `make notebooks` with ARGS=CHAPTER/NAME makes it"
    return nbformat.read(path, as_version=4)


# subtle: each test file makes its own Source of a lesson, most of them while pytest collects.
@functools.cache
def _text_of(name: str) -> str:
    return (chapters.folder() / f"{name}.py").read_text(encoding="utf-8")


@functools.cache
def _cells_of(text: str) -> list:
    return jupytext.reads(text, fmt="py:percent").cells


def printed_by(cell: nbformat.NotebookNode) -> str:
    """What a cell of a notebook shows above its pictures, folded or not."""
    first = cell.outputs[0]
    if first.output_type == "stream":
        return first.text
    return unescape(re.search("<pre[^>]*>(.*?)</pre>", first.data["text/html"], re.DOTALL)[1])


class Source:
    """The lesson with this name for `collectives run`: all_reduce, training/shards. It is read late."""

    def __init__(self, name: str, text: str | None = None):
        self.name = name
        self.changed_text = text

    @cached_property
    def text(self) -> str:
        return self.changed_text or _text_of(self.name)

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @property
    def _cells(self) -> list:
        return _cells_of(self.text)

    @property
    def cells(self) -> list[str]:
        return [cell.source for cell in self._cells]

    @property
    def code(self) -> list[str]:
        return [cell.source for cell in self._cells if cell.cell_type == "code"]

    @cached_property
    def prose(self) -> str:
        return "\n\n".join(cell.source for cell in self._cells if cell.cell_type == "markdown")

    @cached_property
    def steps(self) -> list[str]:
        """The names in STEPS, in order."""
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "STEPS":
                return [element.id for element in node.value.elts]
        return []

    def section(self, name: str) -> str:
        """The prose below a heading; empty if the lesson does not have it."""
        return self.prose.partition(f"## {name}\n")[2].partition("\n## ")[0]

    @cached_property
    def printed(self) -> dict[str, str]:
        """What its notebook shows, by step. test_notebooks.py compares it with a run."""
        notebook = committed(files.find(self.name))
        runs = [re.search(r"^ +run\((\w+)[,)]", cell.source, re.M) for cell in notebook.cells]
        return {
            run[1]: printed_by(cell) for run, cell in zip(runs, notebook.cells, strict=True) if run
        }

    @property
    def proposals(self) -> list[str]:
        """What a reader is asked to change and try, one line each."""
        return self._items("Change and try")

    @property
    def not_run(self) -> list[str]:
        """What the lesson says without having run it, one line each."""
        return [item for name in NOT_RUN for item in self._items(name)]

    @property
    def predictions(self) -> list["Prediction"]:
        """The questions that a reader answers before running a step."""
        found = []
        for number, question in enumerate(self.cells):
            if "**Predict first.**" in question:
                heading = max(n for n in range(number) if re.search("^##", self.cells[n], re.M))
                run, answer = self.cells[number + 2 : number + 4]
                before = "\n".join(self.cells[heading : number + 2])
                step = re.search(r"run\((\w+)[,)]", run)[1]
                found.append(Prediction(step, before, answer.partition(ANSWER)[2]))
        return found

    @property
    def tables(self) -> list[tuple[str, list[list[str]]]]:
        """Each table below "... print this:", with the step that ran last above it, and its cells."""
        found = []
        step = ""
        for cell in self._cells:
            if cell.cell_type == "code" and (
                run := re.search(r"^ +run\((\w+)[,)]", cell.source, re.M)
            ):
                step = run[1]
            for table in re.findall(r"prints? this:\n\n((?:\|.*\n?)+)", cell.source):
                header, _, *rows = table.splitlines()
                cells = [
                    [part.strip() for part in row.strip("|").split("|")] for row in (header, *rows)
                ]
                found.append((step, cells))
        return found

    @property
    def wrong_programs(self) -> list[str]:
        """The changes that the proof of a training must notice, one line each."""
        return self._items("Make it wrong")

    def _items(self, section: str) -> list[str]:
        items = re.split(r"^(?:\d\.|-) ", self.section(section), flags=re.MULTILINE)[1:]
        return [" ".join(item.split()) for item in items]
