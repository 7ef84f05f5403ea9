"""The list for `make mutations` fits the code: each change can be made, and its tests exist."""

import re

import pytest
from mutate import ROOT, load

MUTATIONS = load()


def test_there_are_forty_or_more_and_each_has_a_name_of_its_own():
    names = [mutation.name for mutation in MUTATIONS]
    assert len(names) >= 40
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=[mutation.name for mutation in MUTATIONS])
def test_a_mutation_changes_one_line_and_names_tests_that_exist(mutation):
    before = (ROOT / mutation.file).read_text(encoding="utf-8")
    after = mutation.applied(before)
    pairs = zip(before.splitlines(), after.splitlines(), strict=True)
    assert sum(one != other for one, other in pairs) == 1
    assert mutation.why.endswith(".")
    assert mutation.tests
    for test in mutation.tests:
        file, _, name = test.partition("[")[0].partition("::")
        source = (ROOT / file).read_text(encoding="utf-8")
        assert not name or re.search(rf"^def {name}\(", source, re.MULTILINE), test
