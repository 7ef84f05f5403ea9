"""The words that help the search to a page are few, and no answer to a query that a test asks."""

import re
import tomllib

from repository import ROOT

ALSO = tomllib.loads((ROOT / "tools/site/also_called.toml").read_text("utf-8"))
QUERIES = tomllib.loads((ROOT / "tests/site/queries.toml").read_text("utf-8"))["query"]
# What the search itself passes over.
SMALL = {
    "a",
    "and",
    "are",
    "as",
    "be",
    "does",
    "for",
    "how",
    "in",
    "is",
    "my",
    "of",
    "on",
    "the",
    "to",
}


def words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower())) - SMALL


def test_a_page_has_at_most_twelve_words_and_is_there():
    assert [page for page, also in ALSO.items() if len(also.split()) > 12] == []
    lessons = [page.replace("notebooks/", "lessons/", 1) for page in ALSO]
    found = [
        [*ROOT.glob(f"{page}.py"), *ROOT.glob(f"{page}.md"), *ROOT.glob(f"{page}.html")]
        for page in lessons
    ]
    assert [page for page, files in zip(ALSO, found, strict=True) if not files] == []


def test_no_page_has_all_words_of_a_query():
    copied = [
        (page, query["words"])
        for page, also in ALSO.items()
        for query in QUERIES
        if len(words(query["words"])) > 1 and words(query["words"]) <= words(also)
    ]
    assert copied == []
