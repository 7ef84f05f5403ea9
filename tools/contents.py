"""The course in order, and how long it takes: the README's table and docs/contents.md."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import jupytext

from collectives.course import chapters

# The shortest way from a first program to a model that several ranks train.
ROUTE = (
    *("start", "all_reduce", "broadcast", "all_gather", "reduce_scatter"),
    *("training/one_process", "training/data_parallel"),
)

WORDS_A_MINUTE = 150
LINES_A_MINUTE = 10
FOR_A_PREDICTION, FOR_A_CHANGE, FOR_A_PROGRAM = 1, 2, 10


@dataclass(frozen=True)
class Minutes:
    reading: float = 0.0
    exercises: float = 0.0

    def __add__(self, other: "Minutes") -> "Minutes":
        return Minutes(self.reading + other.reading, self.exercises + other.exercises)

    def __str__(self) -> str:
        """The cells of a table, in steps of five minutes."""
        return f"{_fives(self.reading)} | {_fives(self.exercises)}"


def minutes(lesson: chapters.Lesson) -> Minutes:
    """By the rule that docs/contents.md states."""
    cells = jupytext.read(lesson.path).cells
    prose = "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    lines = [line for line in code.splitlines() if line.strip()]
    predictions = prose.count("**Predict first.**")
    tasks = _section(prose, "Change and try") + _section(prose, "Make it wrong")
    changes = len(re.findall(r"^\d+\. ", tasks, re.MULTILINE))
    # A section has a task of its own, or names exercises.
    sections = len(re.findall(r"^## Write it yourself$", prose, re.MULTILINE))
    programs = max(sections, len(re.findall(r"^collectives practice \w+$", prose, re.MULTILINE)))
    return Minutes(
        len(prose.split()) / WORDS_A_MINUTE
        + len(lines) / LINES_A_MINUTE
        + predictions * FOR_A_PREDICTION,
        changes * FOR_A_CHANGE + programs * FOR_A_PROGRAM,
    )


def _section(prose: str, heading: str) -> str:
    return prose.partition(f"## {heading}\n")[2].partition("\n## ")[0]


def _sum(lessons: Iterable[chapters.Lesson]) -> Minutes:
    return sum((minutes(lesson) for lesson in lessons), Minutes())


def _fives(exact: float) -> int:
    return 5 * round(exact / 5)


def route() -> str:
    """The README's time and table: the route, the other calls, then a line for each chapter."""
    known = chapters.read()
    lessons = {lesson.name: lesson for chapter in known.values() for lesson in chapter.lessons}
    first = [lessons[name] for name in ROUTE]
    rest = [lesson for lesson in known["calls"].lessons if lesson not in first]
    time = _sum(first)
    rows = [
        f'"Start here" takes {_fives(time.reading)} minutes to read and predict. '
        f'"Change and try" and "Write it yourself" take another {_fives(time.exercises)}.',
        "",
        "| lesson | what happens | minutes |",
        "|---|---|---|",
        _heading("Start here", first),
        *_rows(first),
        _heading("The other calls", rest),
        *_rows(rest),
        "| **Chapters** | | |",
    ]
    for chapter in known.values():
        if chapter.name not in ("start", "calls"):
            rows.append(
                f"| [{chapter.name}](docs/contents.md#{chapter.name}) | {chapter.title}. "
                f"| {_fives(_sum(chapter.lessons).reading)} |"
            )
    return "\n".join(rows)


def _heading(title: str, lessons: list[chapters.Lesson]) -> str:
    return f"| **{title}** | | **{_fives(_sum(lessons).reading)}** |"


def _rows(lessons: list[chapters.Lesson]) -> Iterator[str]:
    for lesson in lessons:
        name, reading = lesson.name, _fives(minutes(lesson).reading)
        yield f"| [{name}](notebooks/{name}.ipynb) | {lesson.summary} | {reading} |"


def page() -> str:
    """What docs/contents.md says of every lesson of every chapter."""
    return "\n\n".join([_rule(), *map(_chapter, chapters.read().values())])


def _rule() -> str:
    return (
        "How long a lesson takes is computed from its file. *Reading*: "
        f"{WORDS_A_MINUTE} words a minute, folded answers included; "
        f"{LINES_A_MINUTE} lines of code a minute; "
        f'{FOR_A_PREDICTION} minute for each "Predict first". '
        f"*Exercises*: {FOR_A_CHANGE} minutes for each change to try; "
        f"{FOR_A_PROGRAM} minutes for each program to write. "
        "The tables are rounded to five minutes."
    )


def _chapter(chapter: chapters.Chapter) -> str:
    rows = [
        f"## {chapter.name}",
        "",
        f"{chapter.title}.",
        "",
        "| lesson | what happens | reading | exercises |",
        "|---|---|---|---|",
    ]
    for lesson in chapter.lessons:
        name = lesson.name
        link = f"[{lesson.path.stem}](../notebooks/{name}.ipynb), [.py](../lessons/{name}.py)"
        rows.append(f"| {link} | {lesson.summary} | {minutes(lesson)} |")
    if len(chapter.lessons) > 1:
        rows.append(f"| together | | {_sum(chapter.lessons)} |")
    return "\n".join(rows)
