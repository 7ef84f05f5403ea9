"""What a reader looks for is still taught: topics.toml names the step, or the words, of each topic."""

import tomllib
from pathlib import Path

import pytest
from lesson_source import Source
from repository import ROOT

TOPICS = tomllib.loads(Path(__file__).with_name("topics.toml").read_text(encoding="utf-8"))


class Page:
    """A page of the documentation, for words that no lesson has a place for."""

    steps = ()

    def __init__(self, path: str):
        self.text = (ROOT / path).read_text(encoding="utf-8")


def one_line(text: str) -> str:
    """Without the marks of comments, wherever the lines break."""
    return " ".join(" ".join(line.removeprefix("#") for line in text.splitlines()).split())


def untaught(name: str, source: Source | Page) -> list[str]:
    """The topics of a lesson whose step is not there, or whose words are not there exactly once."""
    text, found = one_line(source.text), []
    for topic, row in TOPICS[name].items():
        match row:
            case {"step": step}:
                if step not in source.steps:
                    found.append(f"{topic}: {name} has no step {step}")
            case {"words": words}:
                if text.count(words) != 1:
                    found.append(f"{topic}: {name} has {text.count(words)} times: {words}")
    return found


@pytest.mark.parametrize("name", TOPICS)
def test_every_topic_is_taught(name):
    source = Page(name) if name.endswith(".md") else Source(name)
    assert untaught(name, source) == []


def test_no_topic_is_lost_from_the_list_and_words_are_long_enough_to_be_found_in_one_place_only():
    rows = [(topic, row) for rows in TOPICS.values() for topic, row in rows.items()]
    assert len({topic for topic, _ in rows}) == len(rows)
    assert len(rows) >= 214, "a row is lost: if its topic is really gone, lower the number"
    assert [topic for topic, row in rows if len(row.get("words", "a b c d").split()) < 4] == []


@pytest.mark.parametrize(
    ("name", "old", "new", "topic"),
    [
        ("start", "Select the GPU by `LOCAL_RANK`", "Select it", "LOCAL_RANK selects the GPU"),
        ("new_group", "STEPS = [new_group, half_sums,", "STEPS = [new_group,", "the sums of both"),
    ],
)
def test_a_topic_that_is_removed_is_named(name, old, new, topic):
    text = Source(name).text
    assert text.count(old) == 1
    (lost,) = untaught(name, Source(name, text.replace(old, new)))
    assert lost.startswith(topic)
