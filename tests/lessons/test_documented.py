"""What a lesson says without having run it has a source: a link, or words of an installed package.

Such sentences are the items below "On GPUs". The words of a package are looked up in its file.
"""

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from lesson_source import Source
from repository import ROOT

from collectives.course import chapters

NAMES = [name for chapter in chapters.read().values() for name in chapter.names]

QUOTATION = re.compile(r"""\(`((?:torch|accelerate)/[\w./]+)`: "(.+?)"\)""")


def without_source(source: Source) -> Iterator[str]:
    if "(documented)" in source.prose:
        yield 'it says "(documented)": make it an item below "## On GPUs", with its source'
    for item in source.not_run:
        quoted = len(QUOTATION.findall(item))
        if not quoted and "](https://" not in item:
            yield f"there is no source: {item}"
        if quoted < len(re.findall(r"`(?:torch|accelerate)/", item)):
            yield f'not quoted as (`torch/file.py`: "words"): {item}'


def misquoted(source: Source) -> Iterator[str]:
    for file, words in QUOTATION.findall(" ".join(source.prose.split())):
        if words not in text_of(file):
            yield f"{file} does not say: {words}"


def text_of(file: str) -> str:
    """A file of a package in one line, without the marks of its comments."""
    package, _, path = file.partition("/")
    (folder,) = importlib.util.find_spec(package).submodule_search_locations
    lines = (Path(folder) / path).read_text(encoding="utf-8").splitlines()
    return " ".join(" ".join(line.strip().removeprefix("#") for line in lines).split())


@pytest.mark.parametrize("name", NAMES)
def test_what_was_not_run_has_a_source_and_the_words_of_a_package_stand_in_its_file(name):
    source = Source(name)
    assert len(source.section("On GPUs").split("\n- ")) <= 1 + 5
    assert list(without_source(source)) == []
    if torch.__version__.startswith("2.13"):  # the words are of torch 2.13
        assert list(misquoted(source)) == []


TITLE = '# %% [markdown]\n"""\n# lesson\n"""\n\n# %% [markdown]\n# ## On GPUs\n#\n'


@pytest.mark.parametrize(
    ("rule", "item", "faults"),
    [
        (without_source, "- NCCL waits.", ["no source"]),
        (without_source, "- NCCL waits (documented).", ["(documented)", "no source"]),
        (without_source, "- NCCL waits (`torch/x.py`: no mark).", ["no source", "not quoted"]),
        (without_source, "- NCCL [waits](https://x.org). Hearsay is below.", []),
        (without_source, '- NCCL waits (`torch/a.py`: "b").\n# - It runs.', ["source: It runs."]),
        (misquoted, '- NCCL waits (`torch/__init__.py`: "no such words").', ["no such words"]),
        (
            misquoted,
            '- It is named (`torch/distributed/distributed_c10d.py`: "Register a new backend with\n'
            '#   the given name and instantiating function.").',
            [],
        ),
    ],
)
def test_a_planted_fault_is_found(rule, item, faults):
    found = list(rule(Source("lesson", f"{TITLE}# {item}\n")))
    assert [part in fault for part, fault in zip(faults, found, strict=True)] == [True] * len(
        faults
    )


@pytest.mark.parametrize("chapter", ["algorithms", "machines"])
def test_a_chapter_names_its_source_where_it_says_something_that_was_not_run(chapter):
    page = (ROOT / f"docs/{chapter}.md").read_text(encoding="utf-8")
    lessons = {name: Source(name).text for name in chapters.read()[chapter].names}
    assert [
        name for name, text in (lessons | {chapter: page}).items() if "documented" in text
    ] == []
