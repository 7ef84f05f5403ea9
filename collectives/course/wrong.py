"""The wrong programs that a lesson proposes below "Make it wrong", and what its proof says of them.

A proposal has a title, and names a function: In `f`, change `old` to `new`.
"""

import re
from pathlib import Path

from collectives.course import files
from collectives.launcher.failure import LaunchError
from collectives.launcher.world import World


def proposals(path: Path) -> dict[str, str]:
    """By title: the cell of the lesson that defines the function, with the change made.

    ValueError if the lesson proposes none, or if what is to be changed is not there exactly once.
    """
    text = path.read_text(encoding="utf-8")
    section = re.search(r"^# ## Make it wrong\n(.*?)(?:^# %%|\Z)", text, re.MULTILINE | re.DOTALL)
    if section is None:
        raise ValueError(f"{path.stem} proposes no wrong program: it has no 'Make it wrong'.")
    cells = re.findall(r"^# %%\n(.*?)(?=^# %%|\Z)", text, re.MULTILINE | re.DOTALL)
    found = {}
    for text in re.split(r"^# \d+\. ", section[1], flags=re.MULTILINE)[1:]:
        item = " ".join(text.replace("\n#", "\n").split())
        title = item.removeprefix("**").partition(".**")[0]
        found[title] = changed(item, cells)[1]
    return found


def changed(item: str, cells: list[str]) -> tuple[str, str]:
    """The name of the function in an item, and the cell that defines it with the change made.

    ValueError unless what is to be changed stands there exactly once.
    """
    name = re.findall(r"In `(\w+)`, change ", item)[0]
    (cell,) = [cell for cell in cells if f"def {name}(" in cell]
    for old, new in re.findall(r"(?:, change| and) `([^`]+)` to `([^`]+)`", item):
        cell = plant(cell, old, new)
    return name, cell


def plant(text: str, old: str, new: str) -> str:
    """The text with this change. ValueError unless `old` stands there exactly once."""
    if (times := text.count(old)) != 1:
        raise ValueError(f"it stands {times} times, and not once, in the text to change: {old}")
    return text.replace(old, new)


def said(path: Path, cell: str, world: World) -> str:
    """What the first step says that notices the change; "" if none does."""
    from collectives.course.runner import run_step

    lesson = files.load(path)
    exec(compile(cell, str(path), "exec"), vars(lesson))
    for step in lesson.STEPS:
        try:
            run_step(vars(lesson)[step.__name__], world)
        except LaunchError as error:
            return error.headline
    return ""
