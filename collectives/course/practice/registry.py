"""All exercises, in the order in which a reader is asked: exercises/exercises.toml has a table for
each folder exercises/CHAPTER/NAME. This module imports no torch: `practice list` is quick.
"""

import functools
import re
import tomllib
from pathlib import Path

from collectives.course import chapters
from collectives.course.practice.exercise import SIZES, Exercise
from collectives.words import did_you_mean


def folder() -> Path:
    """The folder exercises/: that of the checkout, or that in the wheel."""
    return chapters.folder().parent / "exercises"


def read() -> dict[str, Exercise]:
    """All exercises by name, in the order of the table."""
    return _read(folder())


@functools.cache
def _read(folder: Path) -> dict[str, Exercise]:
    table = tomllib.loads((folder / "exercises.toml").read_text("utf-8"))
    return {Path(place).name: _exercise(folder / place, **facts) for place, facts in table.items()}


def _exercise(folder: Path, function: str, stars: int, lesson: str, uses=(), sizes=SIZES):
    return Exercise(folder, function, stars, lesson, tuple(uses), tuple(sizes))


def number(wanted: Exercise) -> int:
    """Its place among all exercises, from 1."""
    return list(read()).index(wanted.name) + 1


def find(name: str) -> Exercise:
    """By its name, or that of its file in a reader's folder (02_average_the_gradients.py).

    ValueError, with the nearest name, if there is none.
    """
    exercises = read()
    name = re.sub(r"^\d+_|\.py$", "", name)
    if name not in exercises:
        raise ValueError(
            f"there is no exercise {name!r}: {did_you_mean(name, exercises)}"
            "`collectives practice list` shows all."
        )
    return exercises[name]
