"""docs/api.md lists what the package promises, and the examples in its docstrings are right."""

import doctest
import importlib
import sys

import numpy
import pytest
import torch
import torch.distributed as dist
from promised import LINES, MODULES
from promised import NAMES as LISTED

import collectives
from collectives.algorithms import recursive_doubling, ring
from collectives.algorithms.links import GroupLinks
from collectives.algorithms.schedule import steps
from collectives.course.practice.data import added

NAMES = {name: getattr(collectives, name) for name in collectives.__all__}
VALUES = NAMES | {name: importlib.import_module(name) for name in MODULES}
KNOWN = [added, GroupLinks, numpy, recursive_doubling, ring, steps, torch]
FINDER = doctest.DocTestFinder(recurse=False, exclude_empty=False)


def example(name: str) -> doctest.DocTest:
    known = {value.__name__.rpartition(".")[-1]: value for value in KNOWN}
    module = sys.modules[getattr(VALUES[name], "__module__", name)]
    (found,) = FINDER.find(VALUES[name], name, globs=NAMES | known | {"dist": dist} | vars(module))
    return found


def is_slow(name: str) -> bool:
    return any("launch(" in one.source for one in example(name).examples)


def test_every_public_name_is_listed_once():
    assert sorted(LISTED) == collectives.__all__


@pytest.mark.parametrize("name", LINES)
def test_its_line_is_what_its_docstring_begins_with(name):
    first, *_ = (VALUES[name].__doc__ or "").strip().split("\n\n")
    assert LINES[name] == " ".join(first.split())


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if is_slow(name) else ()) for name in VALUES],
)
def test_the_example_of_a_public_name_is_right(name):
    found, told = example(name), []
    assert found.examples, f"{name} has no example"
    doctest.DocTestRunner().run(found, out=told.append)
    assert not told, "".join(told)
