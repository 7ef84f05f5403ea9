"""The generated parts of the documentation are what `make docs` makes."""

import re
from dataclasses import replace

import pytest

from collectives.course import chapters
from tools import contents
from tools.docs import SECTIONS

CHEAP = {name: section for name, section in SECTIONS.items() if not section.slow}


def compared(section, text: str) -> str:
    """Of a plot what it says: where its lines run in the file depends on the version of matplotlib."""
    if section.name.endswith("-plot"):
        return re.search(r'aria-label="(.*?)"', text)[1]
    return text.strip()


def test_every_part_is_the_one_that_make_docs_makes():
    """Those that take minutes are compared row by row: see test_training and test_mistakes."""
    pytest.importorskip("matplotlib")
    assert [
        f"{section.path}: run make docs ARGS={name}"
        for name, section in CHEAP.items()
        if compared(section, section.read()) != compared(section, section.make())
    ] == []


def test_a_page_without_the_marks_is_an_error():
    with pytest.raises(ValueError, match=r"README\.md lacks the lines"):
        replace(SECTIONS["works"], name="unknown").read()


LESSON = """\
# %% [markdown]
# # {words}
#
# **Predict first.** How many?
#
# ## Change and try
#
# 1. This.
# 2. That.
#
# ## Write it yourself
{code}
"""


def test_the_minutes_are_counted_by_the_rule_that_the_page_states(tmp_path):
    """100 words more, 20 lines of code more: the figures of the rule are read from the page."""
    rule = SECTIONS["contents"].read().partition("\n")[0]
    words, lines, prediction, change, program = map(int, re.findall(r"\d+", rule))

    def counted(more_words: int, more_lines: int, exercises: str = "") -> contents.Minutes:
        file = tmp_path / "lesson.py"
        code = exercises + "# %%\n" + "x = 1\n\n" * (1 + more_lines)
        file.write_text(LESSON.format(words="word " * more_words, code=code))
        return contents.minutes(chapters.Lesson("lesson", file))

    short, long = counted(10, 0), counted(110, 20)
    assert long.reading - short.reading == pytest.approx(100 / words + 20 / lines)
    assert short.reading == pytest.approx(prediction + 1 / lines, abs=35 / words)
    assert short.exercises == long.exercises == 2 * change + program
    three = counted(10, 0, "# collectives practice one\n" * 3)
    assert three.exercises == 2 * change + 3 * program


def test_the_route_leads_from_the_first_lesson_to_data_parallel_training():
    """In reading order."""
    names = [name for chapter in chapters.read().values() for name in chapter.names]
    assert sorted(contents.ROUTE, key=names.index) == list(contents.ROUTE)
    assert (contents.ROUTE[0], contents.ROUTE[-1]) == ("start", "training/data_parallel")
