"""A page for each exercise, and one that lists them."""

import ast
from collections.abc import Iterator
from itertools import groupby

from collectives.course.practice import registry
from collectives.course.practice.exercise import Exercise
from tools.markdown import table

START = """\
```sh
collectives practice start my-exercises   # once: copies all exercises
cd my-exercises
collectives practice {name}
```

In a notebook, define `{function}` in a cell and try it in the next one:

```python
from collectives import practice

practice("{name}", {function})
```"""


def pages() -> Iterator[tuple[str, str]]:
    """Where each page lies, without its suffix, and its text."""
    for exercise in registry.read().values():
        yield path_of(exercise), _page(exercise)


def path_of(exercise: Exercise) -> str:
    return f"exercises/{exercise.chapter}/{exercise.name}"


def by_lesson() -> str:
    """The exercises in the order of the lessons, a table for each lesson."""
    parts = []
    for lesson, found in groupby(registry.read().values(), lambda one: one.lesson):
        rows = [
            [f"[{_title(one)}]({one.chapter}/{one.name}.md)", f"`{one.name}`", _stars(one)]
            for one in found
        ]
        link = f"## After [{lesson}](../notebooks/{lesson}.ipynb)"
        parts += [link, table(["exercise", "name", "how hard"], rows)]
    return "\n\n".join(parts)


def by_chapter() -> dict[str, list[str]]:
    """The pages of each chapter, with their stars, for the list beside a page."""
    found: dict[str, list[str]] = {}
    for exercise in registry.read().values():
        chapter = exercise.chapter.replace("_", " ").capitalize()
        entry = f"{_title(exercise)} {_stars(exercise)} </{path_of(exercise)}>"
        found.setdefault(chapter, []).append(entry)
    return found


def _task(exercise: Exercise) -> tuple[str, str, str]:
    """Title, text and program of task.py."""
    source = (exercise.folder / "task.py").read_text(encoding="utf-8")
    title, _, text = (ast.get_docstring(ast.parse(source)) or "").partition("\n")
    return title, text.strip("\n"), source.split('"""', 2)[2].strip()


def _title(exercise: Exercise) -> str:
    return _task(exercise)[0]


def _stars(exercise: Exercise) -> str:
    return "★" * exercise.stars


def _page(exercise: Exercise) -> str:
    title, text, program = _task(exercise)
    solution = (exercise.folder / "solution.py").read_text(encoding="utf-8").strip()
    lesson = f"[{exercise.lesson}](../../notebooks/{exercise.lesson}.ipynb)"
    hints = [
        _folded(f"Hint {number} of {len(exercise.hints)}", hint)
        for number, hint in enumerate(exercise.hints, 1)
    ]
    return "\n\n".join(
        [
            f"# {title}",
            text,
            f"{_stars(exercise)} An exercise after the lesson {lesson}.",
            _code(program),
            "## Try it",
            START.format(name=exercise.name, function=exercise.function),
            "The check starts the ranks itself, and shows the smallest case in which your answer "
            "is wrong.",
            "## Hints",
            *hints,
            "## Our solution",
            "Yours may look different: whatever passes the check is right.",
            _folded("Show our solution", _code(solution)),
            "Answers that look right and are not, and what they are told, are listed in "
            f"[wrong.py]({exercise.name}/wrong.py).\n",
        ]
    )


def _code(program: str) -> str:
    return f"```python\n{program}\n```"


def _folded(summary: str, text: str) -> str:
    return f"<details><summary>{summary}</summary>\n\n{text}\n\n</details>"
