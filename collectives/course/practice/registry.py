"""All exercises, in the order of the lessons: each is a folder exercises/CHAPTER/NAME."""

import functools
from pathlib import Path
from typing import Any

from collectives.course import chapters, files
from collectives.course.practice.exercise import Exercise
from collectives.words import did_you_mean


def folder() -> Path:
    """The folder exercises/: that of the checkout, or that in the wheel."""
    return chapters.folder().parent / "exercises"


def read() -> dict[str, Exercise]:
    """All exercises by name, in the order of the lessons; those of a lesson by their stars."""
    lessons = [name for chapter in chapters.read().values() for name in chapter.names]
    found = sorted(
        map(_load, _folders().values()),
        key=lambda one: (lessons.index(one.lesson), one.stars, one.name),
    )
    return {one.name: one for one in found}


def number(wanted: Exercise) -> int:
    """Its place among all exercises, from 1."""
    return list(read()).index(wanted.name) + 1


def find(name: str) -> Exercise:
    """ValueError, with the nearest name, if there is none. It reads no other exercise."""
    folders = _folders()
    if name not in folders:
        raise ValueError(
            f"there is no exercise {name!r}: {did_you_mean(name, folders)}"
            "`collectives practice list` shows all."
        )
    return _load(folders[name])


def _folders() -> dict[str, Path]:
    return {file.parent.name: file.parent for file in folder().glob("*/*/check.py")}


@functools.cache
def _load(folder: Path) -> Exercise:
    """subtle: what several checks of a chapter share lies in the folder of the chapter."""
    file = folder / "check.py"
    program: dict[str, Any] = {"__name__": f"{folder.parent.name}.{folder.name}"}
    with files.imports_from(folder.parent):
        exec(compile(file.read_text("utf-8"), str(file), "exec"), program)
    return program["cases"]
