"""The chapters and their lessons, read from the files chapter.toml in lessons/ and its folders.

A folder with a chapter.toml is a chapter: `title`, `lessons` in reading order, and, if they apply,
`isolated` and `extra` (see Chapter). lessons/chapter.toml has a table for each chapter whose
lessons are in lessons/ itself, `order`, the reading order of the chapters, and `route`, the lessons
that newcomers read first. A folder that `order` does not name comes last. This module imports no
torch: `collectives list` is quick.
"""

import os
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from collectives.words import did_you_mean

_PACKAGE = Path(__file__).parents[1]

# The variable that names a checkout, in the place of the package's own.
CHECKOUT = "COLLECTIVES_CHECKOUT"


@dataclass(frozen=True)
class Lesson:
    """One file of a chapter. `name` is its path below lessons/ without .py: mistakes/order."""

    name: str
    path: Path

    @property
    def title(self) -> str:
        """Its file's name, and what it holds: "reduce: one rank gets the sum of all"."""
        return self._title_cell[0].removeprefix("# ")

    @property
    def summary(self) -> str:
        """The first sentence of the title cell, below the title. A link is its words."""
        paragraph = self._title_cell[1]
        paragraph = re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", " ".join(paragraph.split()))
        return re.split(r"(?<=\.) ", paragraph, maxsplit=1)[0]

    @property
    def _title_cell(self) -> list[str]:
        """Its paragraphs. The first one is the title."""
        return self.path.read_text(encoding="utf-8").split('"""', 2)[1].strip().split("\n\n")


@dataclass(frozen=True)
class Chapter:
    """A chapter, with its lessons in reading order.

    isolated: its steps start worlds of their own, and choose their world size. extra: the extra of
    pyproject.toml that it needs.
    """

    name: str
    title: str
    lessons: tuple[Lesson, ...]
    isolated: bool = False
    extra: str = ""

    @property
    def runs_everywhere(self) -> bool:
        """Whether `run --all` and the tests of every backend take it."""
        return not (self.isolated or self.extra)

    @property
    def names(self) -> list[str]:
        """The names for `collectives run`: all_reduce, mistakes/order."""
        return [lesson.name for lesson in self.lessons]


def folder() -> Path:
    """The folder lessons/ of this package: that in its wheel, or that of its checkout.

    COLLECTIVES_CHECKOUT=DIR names another checkout. ValueError if it is none. Nobody is asked where
    he stands: lessons and exercises are executed, and a folder above may be a stranger's.
    """
    if chosen := os.environ.get(CHECKOUT):
        lessons = Path(chosen, "lessons")
        if not (lessons / "chapter.toml").is_file():
            raise ValueError(f"{CHECKOUT}={chosen} is no checkout: it has no lessons/chapter.toml.")
        return lessons.resolve()
    installed = _PACKAGE / "_course" / "lessons"
    return installed if installed.is_dir() else _PACKAGE.parent / "lessons"


def read(root: Path | None = None) -> dict[str, Chapter]:
    """The chapters below `root` (default: `folder()`) by name, in reading order.

    ValueError if a chapter.toml is wrong, or names a lesson that has no file.
    """
    root = root or folder()
    chapters: dict[str, Chapter] = {}
    order: list[str] = []
    for file in sorted([root / "chapter.toml", *root.glob("*/chapter.toml")]):
        try:
            content = tomllib.loads(file.read_text(encoding="utf-8"))
            if file.parent == root:
                order = content.pop("order", [])
                content.pop("route", None)
                for name, table in content.items():
                    chapters[name] = _chapter(name, root, "", **table)
            else:
                name = file.parent.name
                chapters[name] = _chapter(name, root, f"{name}/", **content)
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{file} does not describe a chapter: {error}") from error
    return {name: chapters.pop(name) for name in order if name in chapters} | chapters


def route() -> list[Lesson]:
    """The lessons that newcomers read first, in reading order.

    ValueError if it names a lesson that is in no chapter.
    """
    known = {lesson.name: lesson for chapter in read().values() for lesson in chapter.lessons}
    names = tomllib.loads((folder() / "chapter.toml").read_text("utf-8")).get("route", [])
    if missing := [name for name in names if name not in known]:
        raise ValueError(f"lessons/chapter.toml names no lesson in route: {', '.join(missing)}")
    return [known[name] for name in names]


def _chapter(
    name: str, root: Path, prefix: str, *, title: str, lessons: list[str], **flags
) -> Chapter:
    made = [Lesson(prefix + stem, root / f"{prefix}{stem}.py") for stem in lessons]
    for lesson in made:
        if not lesson.path.is_file():
            raise ValueError(f"there is no file {lesson.path}")
    return Chapter(name, title, tuple(made), **flags)


def find(name: str) -> Chapter:
    """The chapter of this name. ValueError, with the nearest name, if there is none."""
    chapters = read()
    if name not in chapters:
        raise ValueError(
            f"there is no chapter {name!r}: {did_you_mean(name, chapters)}"
            f"The chapters are {', '.join(chapters)}."
        )
    return chapters[name]
