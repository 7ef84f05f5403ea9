"""A wrong statement that people write is named in a lesson, beside the run that refutes it: statements.toml."""

import functools

import pytest
from lesson_source import Source
from planted import beside
from repository import ROOT

from collectives.course import files
from tools.statements_page import rows

STATEMENTS = rows()
BY_RUN = [row for row in STATEMENTS if row["known"] == "run"]


@functools.cache
def one_line(lesson: str) -> str:
    """Its text without the marks of comments, wherever the lines break."""
    page = lesson.endswith(".md")
    text = (ROOT / lesson).read_text(encoding="utf-8") if page else Source(lesson).text
    return " ".join(" ".join(line.removeprefix("#") for line in text.splitlines()).split())


def missing(row: dict) -> str:
    """What of a statement's row is not there; "" if all is."""
    if (count := one_line(row["lesson"]).count(row["words"])) != 1:
        return f"{row['nr']}: {row['lesson']} has {count} times: {row['words']}"
    if row["known"] != "run":
        return "" if row["known"] in ("read", "documented") and row["source"] else f"{row['nr']}"
    if row["step"] not in Source(row["lesson"]).steps:
        return f"{row['nr']}: {row['lesson']} has no step {row['step']}"
    twins = [one for one in beside(files.find(row["lesson"])) if one.claim == row["twin"]]
    if len(twins) != 1:
        return f"{row['nr']}: {len(twins)} twins make this true: {row['twin']}"
    return ""


def test_every_statement_is_named_beside_what_refutes_it():
    assert [fault for row in STATEMENTS if (fault := missing(row))] == []


def test_no_statement_is_lost_from_the_list():
    assert [row["nr"] for row in STATEMENTS] == [*range(1, 63)]
    assert len(BY_RUN) >= 52, "a run is lost"
    twins = [(row["lesson"], row["twin"]) for row in BY_RUN]
    assert len({*twins}) == len(twins), "each statement has a twin of its own"


@pytest.mark.parametrize("row", BY_RUN, ids=lambda row: f"{row['nr']}: {row['twin']}")
def test_a_twin_says_what_the_run_finds_and_does_not_say_it_itself(row):
    (twin,) = [one for one in beside(files.find(row["lesson"])) if one.claim == row["twin"]]
    assert twin.says, "the message of the step must show the statement"
    assert twin.says not in twin.new


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"words": "No lesson says that"}, "1: hearsay has 0 times: No lesson says that"),
        ({"step": "gloo_has_two"}, "1: hearsay has no step gloo_has_two"),
        ({"twin": "gloo has none"}, "1: 0 twins make this true: gloo has none"),
    ],
)
def test_a_row_that_is_not_so_is_named(changed, said):
    assert missing(STATEMENTS[0] | changed) == said
