"""The nine lessons of one program: what they show of it, and how long they take."""

import itertools
import re

import pytest
from lesson_source import Source

from collectives.course import chapters
from tools import contents, route

LESSONS = chapters.find("route").lessons
LINES = {"route/save_and_resume": 55, "route/take_it_home": 55}  # the others: 50


@pytest.mark.parametrize("number", range(9), ids=[lesson.path.stem for lesson in LESSONS])
def test_a_lesson_shows_what_its_program_has_that_the_one_before_has_not(number):
    """`python -m tools.route` writes it there."""
    for block in route.shown(number):
        assert f"\n{route.as_comment(block)}\n" in Source(LESSONS[number].name).text
    assert route.programs()[number].name in LESSONS[number].path.read_text("utf-8")


def test_what_is_shown_holds_every_line_that_is_new_and_imports_nothing():
    for before, after in itertools.pairwise(route.programs()):
        shown = {line[1:].strip() for line in route.difference(before, after).splitlines()}
        new = {line.strip() for line in route.new_lines(before, after)}
        other = [
            line for line in new - shown if not re.match('import |from |"""|Start it by', line)
        ]
        assert other == [], after.name


def test_the_nine_lessons_are_short():
    reading, exercises, words = 0.0, 0.0, 0
    for lesson in LESSONS:
        prose, lines = contents.parts(lesson)
        to_read, to_do = contents.minutes(lesson)
        assert len(lines) <= LINES.get(lesson.name, 50), lesson.name
        assert to_read <= 12, lesson.name
        words += len(prose.split())
        reading, exercises = reading + to_read, exercises + to_do
    assert words <= 5400
    assert reading <= 90
    assert exercises <= 75


def test_each_lesson_has_a_question_and_its_exercise():
    for lesson in LESSONS:
        source = Source(lesson.name)
        assert source.predictions, lesson.name
        assert "## Write it yourself" in source.prose, lesson.name


@pytest.mark.parametrize("name", ["sampler", "accumulation", "validation", "checkpoint"])
def test_a_second_reading_of_what_the_route_teaches_has_at_most_600_words(name):
    (lesson,) = (one for one in chapters.find("training").lessons if one.path.stem == name)
    prose, _ = contents.parts(lesson)
    assert len(prose.split()) <= 600
