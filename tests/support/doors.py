"""All lessons at one of their doors, and what they have to print there."""

import re

from lesson_source import Source

from collectives.course import chapters, files
from collectives.course.marks import world_of

# Runs each lesson as a program, but all in the same process: importing torch takes longer than most
# lessons.
EVERY = """
import pathlib, runpy, sys
from collectives.course import files
lessons, sys.argv[1:] = sys.argv[1:], []
for lesson in lessons:
    with files.imports_from(pathlib.Path(lesson).parent):
        runpy.run_path(lesson, run_name="__main__")
"""


NAMES = [
    name for chapter in chapters.read().values() if not chapter.isolated for name in chapter.names
]


CALLS = [name for name in NAMES if "/" not in name]


def of_each_kind():
    """All lessons on the calls, and the first with a step that needs what no step before it does."""
    found, known = [], set()
    for name in NAMES:
        needs = {world_of(step) for step in files.load(files.find(name)).STEPS}
        if name in CALLS or needs - known:
            found.append(name)
        known |= needs
    return found


def all_expected(names):
    """What the notebooks of these lessons show."""
    return "".join(text for name in names for text in Source(name).printed.values())


def defined(text: str) -> str:
    """Without what a backend may choose: what `reduce` leaves on the ranks that are not the root,
    and whether an asynchronous call is refused when it starts or when it is waited for. Without the
    steps on gloo, which another backend must skip.
    """
    steps = [step for name in NAMES for step in files.load(files.find(name)).STEPS]
    on_gloo = "|".join(step.__name__ for step in steps if world_of(step).backend == "gloo")
    chosen = r"(?<=(what_is_left|rror_at_wait): proved on all 4 ranks\n).*(?:\n  .*){4}"
    skipped = "skipped: it shows what gloo does"
    shown = rf"^(?:{on_gloo}): (?:{skipped}|proved on all 4 ranks\n.*(?:\n  .*){{4}})\n"
    return re.sub(f"{chosen}|{shown}", "", text, flags=re.MULTILINE)
